"""A worker's shell: the only file here with sockets, clocks and shared memory."""

from __future__ import annotations

import gc
import os
import secrets
import time
from typing import Any

import numpy as np
import zmq

from gt.errors import ConnectionFailed, ProtocolError
from gt.transport import shm
from gt.transport.messages import VERSION, Attach, Attached, Bye, Drop, Join, Mail, Release, decode, encode
from gt.transport.zmq import Ends, host_name, ipc_address, open_socket, own_address
from gt.worker.core import DISPATCHER, Memory, Worker
from gt.worker.engine import Engine


class SharedMemory(Memory):
    """Memory files of clients on this host, and this worker's own that it lends them."""

    def __init__(self) -> None:
        self.pids: dict[str, int] = {}  # clients that share
        self.borrowed, self.pool = shm.Borrowed(), shm.Pool()

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        pid = self.pids.get(client)
        if pid is None:
            raise ProtocolError("this worker shares no memory with that client")
        return self.borrowed.view(pid, place, nbytes), True

    def lend(self, client: str, data: memoryview) -> tuple[int, int, int] | None:
        if client not in self.pids or data.nbytes < shm.SMALL:
            return None
        segment = self.pool.take(data.nbytes)
        np.copyto(segment.view(0, data.nbytes), np.frombuffer(data, np.uint8))
        return (segment.fd, segment.serial, 0)


class Shell:
    """Joins a dispatcher and serves until it goes away."""

    def __init__(self, address: str, engine: Engine, key: str = "", name: str = "", timeout: float = 10.0) -> None:
        self.memory = SharedMemory()
        self.core = Worker(engine, self.memory, os.getpid())
        self.core.more = self._times
        self.control = open_socket(zmq.DEALER, secrets.token_hex(12).encode())
        self.ends = Ends(self.control)
        self.data = open_socket(zmq.ROUTER)
        self.waiting: dict[str, list[Mail]] = {}  # mail for clients that have not attached yet
        self.attached: set[str] = set()
        self.idle = self.busy = 0.0
        local = ipc_address(f"w-{secrets.token_hex(8)}")
        self.data.bind(local)
        if address.startswith("tcp://"):
            port = self.data.bind_to_random_port("tcp://*")
            local += f"|tcp://{own_address(address)}:{port}"
        self.control.connect(address)
        name = name or f"{host_name()}-{os.getpid()}"
        join = Join(VERSION, key, name, engine.name, engine.device, host_name(), os.getpid(), local)
        self.control.send(encode(join))
        if not self.control.poll(int(timeout * 1000)):
            raise ConnectionFailed(f"no dispatcher answered at {address} within {timeout:g} s")
        self._control()
        if self.core.index < 0:
            raise ConnectionFailed(f"the dispatcher at {address} refused this worker")

    def run(self) -> None:
        self.core.engine.clock = time.perf_counter
        self.core.engine.begin()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        poller = zmq.Poller()
        for socket in (self.control, self.data, self.ends.socket):
            poller.register(socket, zmq.POLLIN)
        clock = time.perf_counter
        while True:
            before = clock()
            ready = dict(poller.poll())
            after = clock()
            self.idle += after - before
            if self.data in ready:
                self._data()
            if self.control in ready:
                self._control()
            if self.ends.socket in ready and self.ends.drain():
                return  # the dispatcher is gone, and with it everyone this worker worked for
            self.busy += clock() - after

    def _control(self) -> None:
        for _ in range(32):
            try:
                data = self.control.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            message = self._read(data)
            if type(message) is Bye:
                raise ConnectionFailed(f"the dispatcher {message.why}")
            if type(message) is Drop:
                self._drop(message.client)
            if message is not None:
                self._send(self.core.handle(Mail(DISPATCHER, message)))

    def _data(self) -> None:
        for _ in range(32):
            try:
                peer, *frames = self.data.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            client = peer.bytes.decode("latin1")
            match self._read(frames[0].buffer) if frames else None:
                case None:
                    pass
                case Attach(name, pid, fd, token) if name == client:
                    self._attach(client, pid, fd, token)
                case Release(fd):
                    self.memory.pool.give(fd)
                case message:
                    self._send(self.core.handle(Mail(client, message, tuple(f.buffer for f in frames[1:]))))

    def _read(self, frame: Any) -> Any:
        try:
            return decode(frame)
        except ProtocolError:
            self.core.dropped += 1
            return None

    def _attach(self, client: str, pid: int, fd: int, token: bytes) -> None:
        shares = fd >= 0 and shm.can_read(pid, fd, token)
        if shares:
            self.memory.pids[client] = pid
        self.attached.add(client)
        self._post(Mail(client, Attached(self.core.index, shares)))
        for mail in self.waiting.pop(client, ()):
            self._post(mail)

    def _times(self) -> dict[str, Any]:
        total = self.idle + self.busy
        queue = 32 if self.control.poll(0) else 0
        return {"idle": self.idle / total if total else 1.0, "busy_seconds": self.busy, "queue": queue}

    def _drop(self, client: str) -> None:
        self.attached.discard(client)
        self.waiting.pop(client, None)
        self.memory.pids.pop(client, None)

    def _send(self, mails: list[Mail]) -> None:
        for mail in mails:
            if mail.peer == DISPATCHER:
                self.control.send(encode(mail.message))
            elif mail.peer in self.attached:
                self._post(mail)
            else:
                self.waiting.setdefault(mail.peer, []).append(mail)

    def _post(self, mail: Mail) -> None:
        frames = [mail.peer.encode("latin1"), encode(mail.message), *mail.frames]
        try:
            self.data.send_multipart(frames, zmq.NOBLOCK, copy=sum(len(f) for f in mail.frames) < shm.SMALL)
        except zmq.ZMQError:
            self.attached.discard(mail.peer)  # the client is gone; the dispatcher will say so

    def close(self) -> None:
        self.ends.close()
        self.control.close()
        self.data.close()
