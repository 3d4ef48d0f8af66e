"""Turns of small kernels, which are not measured by events, and turns after collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.transport.messages import Fetch, KindDef, Mail, Peer, Peers, Piece, Run, Value, Welcome
from gt.worker.client_turns import SOON, ClientTurns
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.engine.torch.client_streams import ClientStreams
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs.compile import Ready

SOLVE = KindDef(2, "inverse", ((float32.code, 100, 100),), ())
MADE = KindDef(1, "full", ((-3,),), ((100, 100), float32.code))
SQUARE = Spec((100, 100), float32)


@pytest.mark.parametrize(("name", "large"), [("svd", True), ("eigh", True), ("exp", False)])
def test_a_small_kernel_that_takes_long_counts_as_large(name: str, large: bool) -> None:
    kind = infer(TABLE[name], (SQUARE,), (False,) if name == "svd" else ())
    assert Ready(kind, len).large == large


def test_a_short_run_of_kernels_that_take_long_makes_room_for_who_was_idle() -> None:
    core, now = Worker(make("numpy")), [0.0]
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    def take_in() -> bool:
        if "d" not in turns.queue.shares:
            turns.put("d", Run("d", 1, (MADE,), [(1, 1, 7.0)]))
        return True

    turns = ClientTurns(core, clock, take_in, lambda: False, lambda mails: None)
    turns.put("c", Run("c", 1, (MADE, SOLVE), [(1, 1, 1.0), *((2, n, 1) for n in range(2, 20))]))
    assert turns.next() == "c"
    turns.serve("c")
    assert "c" in core.preempted and turns.next() == "d"


SMALL = KindDef(3, "full", ((-3,),), ((2,), float32.code))
WIDE = KindDef(4, "full", ((-3,),), ((1 << 14,), float32.code))
REDUCE = KindDef(5, "all_reduce", ((float32.code, 2), (-2,)), ((0, 1), "sum"))


class Event:
    """An event of a device that is so many seconds behind the worker."""

    def __init__(self, clock: Clock, late: float) -> None:
        self.clock, self.at = clock, clock.now + late

    def query(self) -> bool:
        return self.clock.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1e3


class Clock:
    """A reading takes a microsecond."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


class Streams(ClientStreams):
    """Of a device with these events; `measured_turns` are the clients of turns with events."""

    late = 20e-6

    def __init__(self, clock: Clock) -> None:
        super().__init__(torch.device("cuda"))
        self.clock, self.measured_turns = clock, list[str]()

    def use(self, client: str) -> None:
        self.current = client

    def pair(self) -> Any:
        return (self, self)

    def begin(self, client: str) -> None:
        self.measured_turns.append(client)
        super().begin(client)

    def _mark(self, spare: list[Any], timed: bool = False) -> Any:
        return Event(self.clock, self.late)

    def to_host(self, array: Any) -> Any:
        return array.copy()

    def host_read(self, host: Any) -> None: ...


def turns_of_device() -> ClientTurns:
    """Those of a worker on such a device, on which several clients were busy a moment ago; `send` keeps the mail."""
    clock, engine = Clock(), make("numpy")
    engine.streams = Streams(clock)
    core, sent = Worker(engine), list[Mail]()
    for message in (Welcome("w0", 0), Peers(tuple(Peer(i, f"w{i}", f"ipc://w{i}", "here") for i in (0, 1)))):
        core.handle(Mail(DISPATCHER, message))
    made = ClientTurns(core, clock, lambda: True, lambda: False, sent.extend)
    made.shared_until = 1.0
    return made


@pytest.fixture
def turns() -> ClientTurns:
    return turns_of_device()


def test_a_turn_of_small_kernels_has_no_events_and_is_charged_the_worker_s_time(turns: ClientTurns) -> None:
    streams, read = turns.core.streams, Fetch(7, 2, (float32.code, 2), (0,), (2,))
    turns.put("c", Run("c", 1, (SMALL, WIDE), [(3, 2, 5.0)], (read,)))
    turns.serve("c")
    assert not streams.measured_turns and len(streams.answers) == 1 and 0 < turns.queue.shares["c"].seconds < 1e-4
    turns.put("c", Run("c", 2, (), [(3, 3, 1.0), (4, 4, 1.0), (4, 5, 1.0)]))
    turns.serve("c")
    assert streams.measured_turns == ["c"] and [len(of) for of in streams.time.turns.values()] == [1]


def test_a_large_read_waits_for_kernels_that_are_charged_and_is_not_charged_again(turns: ClientTurns) -> None:
    streams, read = turns.core.streams, Fetch(7, 2, (float32.code, 1 << 14), (0,), (1 << 14,))
    turns.put("c", Run("c", 1, (SMALL, WIDE), [(4, 2, 5.0)]))
    turns.serve("c")
    turns.put("c", Run("c", 2, (), [(3, 3, 1.0)], (read,)))
    turns.serve("c")
    assert streams.measured_turns == ["c", "c"]


def test_a_run_that_goes_on_after_a_collective_begins_no_turn_of_who_was_served_meanwhile(turns: ClientTurns) -> None:
    core, streams = turns.core, turns.core.streams
    turns.put("c", Run("c", 1, (SMALL, WIDE, REDUCE), [(3, 1, 5.0), (5, 2, 1, 2), (4, 3, 1.0)]))
    turns.serve("c")
    turns.put("other", Run("other", 1, (SMALL,), [(3, 1, 5.0)]))
    turns.serve("other")
    assert core.parked is not None and streams.measured_turns == ["c"] and streams.current == "other"
    core.handle(Mail("#1", Piece(1, "c", 2), (bytes(8),)))
    assert core.parked is None and 3 in core.spaces["c"].table
    assert streams.current == "c" and streams.measured_turns == ["c", "c"], "the rest is a turn of its own"


def test_what_a_run_executes_after_a_collective_is_charged() -> None:
    core, clock = Worker(make("numpy")), Clock()
    for message in (Welcome("w0", 0), Peers(tuple(Peer(i, f"w{i}", f"ipc://w{i}", "here") for i in (0, 1)))):
        core.handle(Mail(DISPATCHER, message))
    turns = ClientTurns(core, clock, lambda: True, lambda: False, lambda mails: None)
    turns.put("c", Run("c", 1, (SMALL, WIDE, REDUCE), [(3, 1, 5.0), (5, 2, 1, 2), *((4, n, 1.0) for n in range(3, 60))]))
    turns.serve("c")
    share = turns.queue.shares["c"]
    before, turn_count = share.seconds, share.turns
    turns.put("other", Run("other", 1, (SMALL,), [(3, 1, 5.0)]))
    turns.serve("other")
    core.handle(Mail("#1", Piece(1, "c", 2), (bytes(8),)))
    assert core.parked is None and share.seconds > before + 50e-6 and share.turns == turn_count


def test_an_interactive_client_is_answered_in_its_turn_if_the_device_is_soon_done(turns: ClientTurns) -> None:
    streams, sent = turns.core.streams, list[Any]()
    turns.send = sent.extend
    streams.preferred = {"i"}
    read = Fetch(7, 2, (float32.code, 2), (0,), (2,))
    for client in "ic":
        turns.put(client, Run(client, 1, (SMALL,), [(3, 2, 5.0)], (read,)))
        turns.serve(client)
    assert turns.queue.shares["i"].seconds > streams.late > turns.queue.shares["c"].seconds, "the wait is charged"
    assert [(mail.peer, type(mail.message)) for mail in sent] == [("i", Value)] and streams.awaited("c")
    streams.late = 1.0
    turns.put("i", Run("i", 2, (), [(3, 3, 5.0)], (read,)))
    before = turns.clock()
    turns.serve("i")
    assert [mail.peer for mail in sent] == ["i", "c"] and streams.awaited("i") and turns.clock() - before < 2 * SOON, (
        "others are not kept waiting for long"
    )
