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

from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport import messages as m
from gt.transport.addresses import ipc_address
from gt.transport.auth import listen
from gt.worker.cancel import EVERY, LARGE
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

    def hear(self) -> None:
        """Receive the worker's messages, and answer."""
        while self.dispatcher.poll(0):
            sender, frame = self.dispatcher.recv_multipart()
            if sender == self.worker and isinstance(word := m.decode(frame), m.Begun):  # its reporter has another connection
                self.begun.append(word)
                self.say(m.Skip(word.number, ()))  # no worker has begun any

    def end(self) -> bool:
        """Whether the worker has begun a collective."""
        self.hear()
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


def joined(others: Others, engine: Any) -> Shell:
    joining = threading.Thread(target=others.welcome)
    joining.start()
    made = Shell(others.address, engine)
    joining.join()
    return made


def test_no_collective_is_begun_after_the_worker_has_told_how_many_it_has_begun(others: Others) -> None:
    """Were one begun, the other worker would take its piece for that of the next client's collective."""
    engine = make("numpy")
    shell = joined(others, engine)
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


LEAVES = 3  # the instruction in whose midst its client leaves
WIDE = (F, LARGE)
FILL, LOG = m.KindDef(1, "full", ((-3,),), ((LARGE,), F)), m.KindDef(2, "log", (WIDE,), ())
ROW = [(2, n + 1, n) for n in range(1, 11)]
CALL = m.Run("gone", 2, (), [(4, 11, 1)], traces=(TraceDef(4, 1, ROW, (11,)),))
WORK = {"instructions": m.Run("gone", 2, (), ROW), "trace": CALL}


@pytest.mark.parametrize("sort", WORK)
def test_no_large_kernel_is_run_after_its_client_has_left(others: Others, sort: str) -> None:
    engine, ran = make("numpy"), 0
    shell = joined(others, engine)
    kernel = engine.kernel

    def with_a_departure(kind: Any) -> Any:
        run = kernel(kind)

        def log(a: Any) -> Any:
            nonlocal ran
            ran += 1
            if ran == LEAVES:
                others.say(m.Drop("gone", 9))
                assert shell.dispatcher.socket.poll(60_000)
                time.sleep(1.1 * EVERY)  # it takes long, so the worker looks for messages after it
            return run(a)

        return log if kind.row.name == "log" else run

    engine.kernel = with_a_departure  # type: ignore[method-assign]
    others.say(m.Run("gone", 1, (FILL, LOG), [(1, 1, 3.0)]))
    others.say(WORK[sort])

    def end() -> bool:
        others.hear()
        return bool(ran) and not shell.core.spaces or time.monotonic() > others.until

    try:
        shell.run(until=end)
    finally:
        shell.close()
    assert ran == LEAVES and not shell.core.spaces
