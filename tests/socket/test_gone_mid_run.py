"""A worker that learns in the middle of a run that the run's client is gone begins nothing more of it. The worker's shell runs
in this process, and the messages come at the very instruction."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import zmq

from gt.spec import float32
from gt.transport import messages as m
from gt.transport.addresses import ipc_address
from gt.transport.auth import listen
from gt.worker.engine.choose import make
from gt.worker.fair_queue import SLICE
from gt.worker.serve import Shell
from gt.worker.turns import LIGHT

F = float32.code
PAIR = (F, 2, 2)
FULL = m.KindDef(1, "full", ((-3,),), ((2, 2), F))
EXP = m.KindDef(2, "exp", (PAIR,), ())
REDUCE = m.KindDef(3, "all_reduce", (PAIR, (-2,)), ((0, 1), "sum"))


class Others:
    """A dispatcher, and the other worker of a pool of two, as their sockets."""

    def __init__(self, stack: ExitStack) -> None:
        opened = [stack.enter_context(zmq.Context.instance().socket(zmq.ROUTER)) for _ in range(2)]
        for socket in opened:
            socket.linger = 0
        self.dispatcher, self.peer = opened
        self.address, self.peer_address = listen(self.dispatcher, ipc_address("d")), listen(self.peer, ipc_address("p"))
        self.worker = b""
        self.begun: list[m.Begun] = []
        self.pieces: list[m.Piece] = []
        self.until = time.monotonic() + 60

    def welcome(self) -> None:
        self.worker, _ = self.dispatcher.recv_multipart()
        self.say(m.Welcome("w0", 0))

    def say(self, message: m.Message) -> None:
        self.dispatcher.send_multipart([self.worker, m.encode(message)])

    def end(self) -> bool:
        """Receive the worker's messages, and answer. Whether it has begun a collective."""
        while self.dispatcher.poll(0):
            sender, frame = self.dispatcher.recv_multipart()
            if sender == self.worker and isinstance(word := m.decode(frame), m.Begun):  # its reporter has another connection
                self.begun.append(word)
                self.say(m.Skip(word.number, ()))  # no worker has begun any
        while self.peer.poll(20):
            self.pieces.append(m.decode(self.peer.recv_multipart()[1]))
        return bool(self.pieces) or time.monotonic() > self.until


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    thresholds = gc.get_threshold()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("GT_COLLECTIVES", "mail")
        yield Others(stack)
    gc.set_threshold(*thresholds)
    gc.unfreeze()  # a shell expects to have its process for itself


def test_no_collective_is_begun_after_the_worker_has_told_how_many_it_has_begun(others: Others) -> None:
    """Were one begun, the other worker would take its piece for that of the next client's collective."""
    engine = make("numpy")
    joining = threading.Thread(target=others.welcome)
    joining.start()
    shell = Shell(others.address, engine)
    joining.join()
    kernel = engine.kernel

    def with_a_message(kind: Any) -> Any:
        run = kernel(kind)

        def exp(a: Any) -> Any:
            others.say(m.Drop("gone", 9))
            assert shell.dispatcher.socket.poll(60_000)
            time.sleep(2 * SLICE)  # its turn is over, so the worker looks for messages
            return run(a)

        return exp if kind.row.name == "exp" else run

    engine.kernel = with_a_message  # type: ignore[method-assign]
    peers = (m.Peer(0, "w0", "ipc://w0", "here"), m.Peer(1, "w1", others.peer_address, "here", reached=m.Reached(torch=False)))
    others.say(m.Peers(peers))
    between = [(1, 10, 0.0)] * LIGHT
    others.say(m.Run("gone", 1, (FULL, EXP, REDUCE), [(1, 1, 3.0), (2, 2, 1), *between, (3, 3, 2, 3)]))
    others.say(m.Run("other", 1, (FULL, REDUCE), [(1, 1, 1.0), (3, 2, 1, 2)]))
    try:
        shell.run(until=others.end)
    finally:
        shell.close()
    assert [(piece.client, piece.tag) for piece in others.pieces] == [("other", 2)]
    assert others.begun == [m.Begun(9, ())]
