"""Turns of clients: how long one lasts, what a client that is alone is spared, and when a worker looks at its other sockets."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from gt.spec import float32
from gt.transport.messages import KindDef, Mail, Run, Welcome
from gt.worker.client_turns import ClientTurns
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.engine.torch.client_streams import ClientStreams
from gt.worker.fair_queue import SLICE
from gt.worker.peer_names import DISPATCHER
from gt.worker.serve import TURNS, Shell
from gt.worker.turns import LIGHT, LOOK, Turn


class Turns:
    """Turns of a client that always has another one to do; each takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.served = seconds, 0.0, 0

    def follow_device(self) -> None: ...

    def alone(self, *args: object) -> bool:
        return False

    def next(self) -> str:
        return "c"

    def serve(self, client: str) -> float:
        self.served += 1
        self.now += self.seconds
        return self.now


@pytest.mark.parametrize(("seconds", "turns"), [(10 * SLICE, 1), (0.6 * SLICE, 2), (SLICE / 1000, TURNS)])
def test_long_turns_are_not_taken_in_a_row_without_a_look_at_other_sockets(seconds: float, turns: int) -> None:
    shell = Shell.__new__(Shell)
    shell.inbound, shell.core, shell.turns = deque(), SimpleNamespace(preempted={}), Turns(seconds)  # type: ignore[assignment]
    shell.dispatcher = SimpleNamespace(receive=lambda: None)  # type: ignore[assignment]
    shell._take_in = lambda: True  # type: ignore[method-assign]
    shell._control(0.0)
    assert shell.turns.served == turns  # type: ignore[attr-defined]


def test_a_turn_makes_room_for_who_was_idle_before_its_slice_is_over() -> None:
    now, came, others = [0.0], [False], [False]
    turn = Turn(lambda: now[0], lambda: others[0], newcomer=lambda: came[0])
    for several, at, idle, full, want in [
        (True, LOOK / 2, True, True, False), (True, 1.1 * LOOK, True, False, True), (True, 1.1 * LOOK, False, True, False),
        (False, 1.1 * LOOK, True, True, False), (False, 1.1 * SLICE, False, True, True),
        (True, 1.1 * SLICE, True, False, False),
    ]:  # fmt: skip
        now[0], came[0], others[0] = 0.0, idle, full
        turn.begin(0.0, several)
        assert not turn.over(), "something is executed in every turn"
        now[0] = at
        assert turn.over() == want, (several, at, idle, full)


def test_nothing_more_is_launched_on_a_device_that_is_behind_though_nobody_waits() -> None:
    turn = Turn(lambda: 0.0, lambda: False, behind=lambda: True)
    turn.begin(0.0)
    assert not turn.over() and turn.over()


FILL = KindDef(1, "full", ((-3,),), ((2,), float32.code))


def alone(turns: ClientTurns, *messages: Any) -> list[Any]:
    """Serve these as the messages of the one client there is; those that have to wait their turn."""
    waiting, left = deque(messages), []

    def sort(message: Any) -> None:
        left.append(message)
        turns.put("c", message)

    turns.alone(lambda: waiting.popleft() if waiting else None, lambda frame: frame, sort, 1e9)
    return left + list(waiting)


def test_a_client_that_is_alone_is_served_as_its_messages_come_and_has_the_same_counts() -> None:
    core, now = Worker(make("numpy")), iter(range(1000))
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    turns = ClientTurns(core, lambda: float(next(now)), lambda: True, lambda: False, lambda mails: None)
    first = Run("c", 1, (FILL,), [(1, 1, 5.0)])
    assert alone(turns, first) == [first], "who has not been here has no share yet"
    assert turns.serve("c") and turns.next() is None
    assert alone(turns, *(Run("c", n, (), [(1, n, float(n))]) for n in (2, 3, 4))) == []
    table = core.spaces["c"].table
    assert [float(table[n][0]) for n in (1, 2, 3, 4)] == [5.0, 2.0, 3.0, 4.0]
    stats = turns.stats()["shares"]["c"]
    assert stats["turns"] == 4 and stats["seconds"] == stats["entitled"] == turns.queue.total > 0
    turns.put("d", Run("d", 1, (FILL,), [(1, 1, 7.0)]))
    later = Run("c", 5, (), [(1, 5, 5.0)])
    assert alone(turns, later) == [later], "as soon as there is another, turns are taken"


def test_a_run_of_a_client_that_is_alone_is_left_for_one_that_comes() -> None:
    core, now, came = Worker(make("numpy")), iter(range(1000)), [False]
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))

    def take_in() -> bool:
        if came[0] and "d" not in turns.queue.shares:
            turns.put("d", Run("d", 1, (FILL,), [(1, 1, 7.0)]))
        return True

    turns = ClientTurns(core, lambda: float(next(now)), take_in, lambda: False, lambda mails: None)
    alone(turns, Run("c", 1, (FILL,), [(1, 1, 5.0)]))
    turns.serve("c")
    assert turns.next() is None
    came[0] = True
    alone(turns, Run("c", 2, (), [(1, n, float(n)) for n in range(2, 2 + 3 * LIGHT)]))
    assert "c" in core.preempted and turns.queue.preemptions == 1
    served = []
    while (client := turns.next()) is not None:
        served.append(client)
        turns.serve(client)
    assert set(served) == {"c", "d"} and len(core.spaces["c"].table) == 3 * LIGHT + 1 and not core.preempted


class Event:
    """An event of a device, at so many milliseconds."""

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_time_in_which_two_clients_ran_side_by_side_is_charged_once() -> None:
    streams = ClientStreams.__new__(ClientStreams)
    streams.last = None
    streams.turns = deque((c, Event(a), Event(b)) for c, a, b in [("a", 0, 2), ("b", 1, 3), ("a", 2.5, 2.9), ("b", 5, 6)])
    assert streams.measured() == [("a", 0.002), ("b", 0.001), ("a", 0.0), ("b", 0.001)]
