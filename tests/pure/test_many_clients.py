"""A dispatcher with a thousand clients, most of them idle: a question takes the same calls as of a client that is alone, and
each of the others costs some kilobytes that do not grow."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from gt.dispatcher.core import Dispatcher
from gt.spec import float32
from gt.transport.messages import (
    VERSION,
    Ack,
    Attached,
    Batch,
    Done,
    Fetch,
    Hello,
    Join,
    KindDef,
    Mail,
    Message,
    Note,
    Run,
    Welcome,
    decode,
    encode,
)  # fmt: skip
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER

F = float32.code
PAIR = (F, 2, 2)
FULL, ADD = KindDef(1, "full", ((-3,),), ((2, 2), F)), KindDef(2, "add", (PAIR, PAIR), ())
CLIENTS = 1000


def question(serial: int) -> Batch:
    """An op, its read and the free of the previous result."""
    return Batch(serial, (), [(2, serial + 100, 1, 1), (0, serial + 99)], ((serial, serial + 100, PAIR),), True)


class BusyDispatcher:
    """A dispatcher with a worker; its invariants are checked once, at the end, as they are those of all clients."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self("w0", Join(VERSION, "", "w0", "numpy", "cpu", "here", 8, "ipc://w0"))
        self.come("c")

    def __call__(self, peer: str, message: Message) -> list[Mail]:
        return self.dispatcher.handle(Mail(peer, message))

    def come(self, name: str) -> None:
        self(name, Hello(VERSION, "", "here", 1))
        self(name, Batch(1, (FULL, ADD), [(1, 1, 3.0)]))


def calls(what: Callable[[], Any]) -> int:
    """Functions that were called, Python's own and others."""
    count = 0

    def note(frame: Any, event: str, called: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count


def test_a_question_takes_the_same_calls_with_a_thousand_clients() -> None:
    talk = BusyDispatcher()

    def measured(serial: int) -> tuple[int, int]:
        asked = calls(lambda: talk("c", question(serial)))
        return asked, calls(lambda: talk("w0", Done("c", serial, (), 0.5)))

    alone = [measured(serial) for serial in range(2, 8)]
    for n in range(CLIENTS - 1):
        talk.come(f"idle{n}")
    crowded = [measured(serial) for serial in range(8, 14)]
    talk.dispatcher.tables.check()
    assert len(talk.dispatcher.tables.clients) == CLIENTS and min(crowded) == min(alone) and max(crowded) <= max(alone)


def test_idle_clients_are_not_looked_at_as_time_goes_by() -> None:
    talk = BusyDispatcher()
    talk("w0", Attached(0, True, "c"))
    tick = talk.dispatcher.tick
    tick(1.0)
    alone = calls(lambda: tick(2.0))
    for n in range(CLIENTS - 1):
        talk.come(f"idle{n}")
    assert tick(3.0) == [], "their worker has not heard from them yet"
    for n in range(CLIENTS - 2):
        talk("w0", Attached(0, True, f"idle{n}"))
    assert tick(20.0) == [] and calls(lambda: tick(21.0)) < alone + 20, "one is left that it has not heard from"
    [told] = tick(50.0)
    assert told.peer == f"idle{CLIENTS - 2}" and isinstance(told.message, Note) and calls(lambda: tick(60.0)) == alone


def test_memory_of_a_thousand_clients_is_bounded_and_does_not_grow() -> None:
    talk = BusyDispatcher()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(CLIENTS - 1):
            talk.come(f"idle{n}")
        came = tracemalloc.get_traced_memory()[0]

        def asked_by_all(serial: int) -> int:
            for name in list(talk.dispatcher.tables.clients):
                mails = talk(name, question(serial))
                [run] = [m.message for m in mails if isinstance(m.message, Run)]
                assert [get.id for get in run.gets if isinstance(get, Fetch)] == [serial + 100]
                [ack] = talk("w0", Done(name, serial, (), 0.5))
                assert ack.peer == name and isinstance(ack.message, Ack)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        first, last = asked_by_all(2), asked_by_all(3)
    finally:
        tracemalloc.stop()
    assert (came - before) / CLIENTS < 16_000, "bytes for each idle client"
    assert (last - first) / CLIENTS < 64, "bytes that a client leaves behind with each question"


def test_clients_that_left_leave_nothing_with_dispatcher_or_worker() -> None:
    dispatcher, worker = Dispatcher(), Worker(make("numpy"))
    dispatcher.handle(Mail("w0", Join(VERSION, "", "w0", "numpy", "cpu", "here", 8, "ipc://w0")))
    worker.handle(Mail(DISPATCHER, Welcome("w0", 0)))

    def visit(name: str) -> None:
        mails = [m for said in (Hello(VERSION, "", "here", 1), Batch(1, (FULL, ADD), [(1, 1, 3.0), (2, 2, 1, 1)]))
                 for m in dispatcher.handle(Mail(name, said))]  # fmt: skip
        for mail in (*mails, *dispatcher.lose(name, "it left")):
            if mail.peer == "w0":
                worker.handle(Mail(DISPATCHER, decode(encode(mail.message))))

    for n in range(20):
        visit(f"early{n}")
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(CLIENTS):
            visit(f"late{n}")
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert worker.runs == CLIENTS + 20 and not worker.spaces and not dispatcher.tables.clients
    assert kept / CLIENTS < 100, "bytes that stay of each client"
