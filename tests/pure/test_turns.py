"""Turns of clients: their length, the savings of a client alone, and when a worker polls its other sockets."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gt.spec import float32
from gt.transport.messages import Came, KindDef, Mail, Run, Welcome
from gt.worker.client_turns import ClientTurns
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.engine.torch.client_streams import IN_FLIGHT, MANY, ClientStreams
from gt.worker.engine.torch.device_time import DeviceTime
from gt.worker.fair_queue import SLICE, FairQueue
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


def test_idle_clients_take_nothing_from_one_that_is_busy_and_wait_for_no_queue_of_its() -> None:
    core, now = Worker(make("numpy")), iter(range(1000))
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    turns = ClientTurns(core, lambda: float(next(now)), lambda: True, lambda: False, lambda mails: None)
    for client in ("c", "idle"):
        turns.put(client, Run(client, 1, (FILL,), [(1, 1, 5.0)]))
        turns.serve(client)
    assert turns.next() is None
    runs = [Run("c", n, (), [(1, n, float(n))]) for n in (2, 3, 4)]
    assert alone(turns, runs[0]) == [] and 2 in core.spaces["c"].table
    assert alone(turns, *runs[1:]) == runs[1:], "where several wait, one may be of another client: they are sorted first"
    while (client := turns.next()) is not None:
        turns.serve(client)
    for client in ("idle", "c"):
        assert alone(turns, Run(client, 9, (), [(1, 9, 1.0)])) == [] and 9 in core.spaces[client].table
        share = turns.queue.shares[client]
        assert share.virtual == turns.queue.virtual + 1.0, "who was idle starts where the others are"
    assert turns.queue.shares["idle"].turns == 2 and turns.queue.shares["c"].turns == 5


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

    now = 0.0  # how far the device has come

    def __init__(self, at: float) -> None:
        self.at = at

    def query(self) -> bool:
        return self.at <= Event.now

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query()
        return other.at - self.at


def test_time_in_which_clients_ran_side_by_side_is_divided_among_them_and_charged_once() -> None:
    spans = [("a", 0, 2), ("b", 1, 4), ("a", 2, 3), ("c", 1.5, 2.5), ("b", 6, 7), ("a", 2000, 2001), ("b", 2000.5, 2001)]
    want = [("a", 1.25 + 1 / 6), ("c", 1 / 3), ("a", 0.5 - 1 / 12), ("b", 1.5 + 1 / 3), ("b", 1), ("a", 0.75), ("b", 0.25)]
    for steps in (1, 500, 5000):  # however often it is looked at
        time, found = DeviceTime(), []
        for client, begins, ends in spans:
            time.add(client, Event(begins), Event(ends))
        for step in range(steps):
            Event.now = 2100.0 * (step + 1) / steps
            found += [(client, seconds) for client, seconds, _ in time.measured()]
        assert sorted(found) == [(c, pytest.approx(ms / 1e3)) for c, ms in sorted(want)], steps
        assert sum(seconds for _, seconds in found) == pytest.approx(0.006), "the device was busy for so long"
        assert not time.turns and not time.running and time.base_at == 2001


def test_two_clients_that_keep_a_device_busy_have_time_by_their_weights() -> None:
    """A device that divides itself evenly among those that have a call there, each of which takes 3 ms alone."""
    queue, left, now = FairQueue(), dict[str, float](), 0.0
    done, time = {"heavy": 0, "light": 0}, DeviceTime()
    queue.introduce(Came("heavy", 3.0, 0))
    for client in done:
        for _ in range(4000):
            queue.put(client, Run(client, 1, (), []), 0.0)
    began = dict[str, float]()
    while now < 6000.0:
        while (client := queue.next(None, (), left.__contains__)) is not None:
            queue.take(client, now)
            left[client], began[client] = 3.0, now
        step = min(left.values()) * len(left)  # until the first of them ends
        now += step
        Event.now = now
        for client in [c for c in left if left[c] * len(left) <= step]:
            time.add(client, Event(began[client]), Event(now))
            done[client] += 1
        share = step / len(left)
        left = {c: rest - share for c, rest in left.items() if rest - share > 1e-9}
        for client, seconds, _ in time.measured():
            queue.charge(client, seconds)
    assert done["heavy"] / done["light"] == pytest.approx(3.0, rel=0.02), done
    assert done["heavy"] + done["light"] == pytest.approx(2000, rel=0.01), "the device was never idle"


def test_calls_of_clients_of_other_weights_have_one_order_on_a_device_and_interactive_ones_overtake() -> None:
    streams = ClientStreams(torch.device("cuda"))
    streams.shared, streams.ordered, streams.preferred = True, True, {"i"}
    Event.now, marks = 0.0, iter(range(1, 10))
    streams._mark = lambda timed=False: Event(next(marks))  # type: ignore[method-assign]
    streams.called("i")
    streams.called("a")
    assert not streams.behind("b"), "one is under way, and one may wait behind it"
    streams.called("a")
    assert streams.behind("a") and streams.behind("b") and not streams.behind("i")
    Event.now = 2.0
    assert not streams.behind("b") and not streams.behind("a")
    streams.called("b")
    assert streams.behind("b") and streams.behind("a")
    streams.ordered = False
    assert not streams.behind("b"), "of the same weight, each has two in flight"


def test_a_client_of_short_calls_has_more_of_them_in_flight_and_several_in_a_turn() -> None:
    streams = ClientStreams(torch.device("cuda"))
    streams.shared, streams.streams = True, {"short": (None, None), "long": (None, None)}
    Event.now, asked, now = 0.0, [0], [0.0]

    class Counted(Event):
        def query(self) -> bool:
            asked[0] += 1
            return super().query()

    def launch(client: str, ms: float) -> int:
        """One turn, up to the end of what may be in flight; calls take so long."""
        streams.began, streams.launched = Event(now[0]), 0
        while not streams.behind(client, began=True):
            now[0] += ms
            streams._mark = lambda timed=False: Counted(now[0])  # type: ignore[method-assign]
            streams.called(client)
        streams.time.add(client, streams.began, Event(now[0]), streams.launched)
        return streams.launched

    assert launch("short", 0.13) == launch("long", 2.0) == IN_FLIGHT, "nothing is known of them yet"
    Event.now = now[0]
    assert streams.measured() == {"short": (pytest.approx(2.6e-4), 1), "long": (pytest.approx(4e-3), 1)}
    for _ in range(5):
        began, asked[0] = now[0], 0
        assert not streams.behind("short") and (launched := launch("short", 0.13)) == 3
        assert asked[0] <= launched + 2, "the device is asked only where as many seem to be in flight"
        Event.now = began + 0.14
        assert streams.behind("short"), "a turn for one call costs more than the call"
        Event.now = now[0]
        streams.measured()
    assert not streams.behind("long") and launch("long", 2.0) == IN_FLIGHT
    for _ in range(30):
        Event.now = now[0]
        streams.measured()
        launch("short", 0.001)
    assert streams.most == {"short": MANY, "long": IN_FLIGHT}


def test_clients_are_even_where_each_has_the_same_share() -> None:
    queue = FairQueue()
    for client in "ab":
        queue.put(client, Run(client, 1, (), []), 0.0)
    queue.introduce(Came("i", 4.0, 0))
    queue.put("i", Run("i", 1, (), []), 0.0)
    assert queue.even({"i"}) and not queue.even(())
    queue.introduce(Came("b", 3.0, 0))
    assert not queue.even({"i"})
    for client, user in (("x", "one"), ("y", "one"), ("z", "two")):
        queue.introduce(Came(client, 1.0, 0, user, 1.0))
        queue.put(client, Run(client, 1, (), []), 0.0)
    assert not queue.even({"a", "b", "i"}), "one user's two have half of what the other's one has"
    assert queue.even({"a", "b", "i", "z"})
