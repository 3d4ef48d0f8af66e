"""Turns of clients: their length, the savings of a client alone, and when a worker polls its other sockets."""

from __future__ import annotations

from collections import deque
from itertools import count
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gt.spec import float32
from gt.transport.messages import Came, KindDef, Mail, Peer, Peers, Piece, Run, Upload, Welcome
from gt.worker.client_turns import ClientTurns
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.engine.torch.client_streams import IN_FLIGHT, MANY, ClientStreams, InFlight
from gt.worker.engine.torch.device_time import DeviceTime
from gt.worker.fair_queue import SLICE, FairQueue
from gt.worker.peer_names import DISPATCHER
from gt.worker.serve import TURNS, Shell
from gt.worker.turns import ALONE, LIGHT, LOOK, Turn


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
    shell.core, shell.turns = SimpleNamespace(preempted={}), Turns(seconds)  # type: ignore[assignment]
    shell.arrivals = SimpleNamespace(others=deque(), take_in=lambda: True, sort=None)  # type: ignore[assignment]
    shell.dispatcher = SimpleNamespace(receive=lambda: None)  # type: ignore[assignment]
    shell._control(0.0)
    assert shell.turns.served == turns  # type: ignore[attr-defined]


def test_a_turn_makes_room_for_who_was_idle_before_its_slice_is_over() -> None:
    now, came, others = [0.0], [False], [False]
    turn = Turn(lambda: now[0], lambda: others[0], newcomer=lambda: came[0])
    for several, at, idle, full, want in [
        (True, LOOK / 2, True, True, False), (True, 1.1 * LOOK, True, False, True), (True, 1.1 * LOOK, False, True, False),
        (False, 1.1 * LOOK, True, True, False), (False, 1.1 * SLICE, False, True, False),
        (False, 1.1 * ALONE, False, True, True),
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
    """Serve these as the messages of the only client; returns the messages that wait their turn."""
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


def test_the_first_message_of_a_new_client_waits_for_a_long_turn_and_later_ones_do_not() -> None:
    core, now, arrive = Worker(make("numpy")), [0.0], [inf]
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))

    def clock() -> float:
        now[0] += LOOK / 10
        return now[0]

    def take_in() -> bool:
        if now[0] >= arrive[0]:
            arrive[0] = inf
            turns.put("d", Run("d", 1, (FILL,), [(1, 1, 7.0)]))
        return True

    turns = ClientTurns(core, clock, take_in, lambda: False, lambda mails: None)
    turns.put("c", Run("c", 1, (FILL,), [(1, n, 1.0) for n in range(1, 1000 * LIGHT)]))
    for longest in (ALONE, LOOK, LOOK):
        began = now[0]
        arrive[0] = began + LOOK / 2
        assert turns.next() == "c"
        turns.serve("c")
        assert "c" in core.preempted and longest / 2 < now[0] - began < 1.2 * longest + LOOK, now[0] - began
        assert turns.next() == "d"
        turns.serve("d")


@pytest.mark.parametrize(("seconds", "waits", "charged"), [(0.05, 0.045, 0.005), (0.05, 0.06, 0.0), (0.002, 0.001, 0.002)])
def test_a_turn_in_which_the_worker_had_no_core_is_charged_without_that_time(
    seconds: float, waits: float, charged: float
) -> None:
    core, now = Worker(make("numpy")), [1.0]
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    turns = ClientTurns(core, lambda: now[0], lambda: True, lambda: False, lambda mails: None)
    waited = [3.0]
    turns.core_waits = lambda: waited[0]
    for client in ("c", "d"):
        turns.put(client, Run(client, 1, (FILL,), [(1, 1, 5.0)]))
    handle_run = core.handle_run

    def preempted_by_another_program(run: Run) -> list[Mail]:
        now[0] += seconds
        waited[0] += waits
        return handle_run(run)

    core.handle_run = preempted_by_another_program  # type: ignore[method-assign]
    turns.serve("c")
    assert turns.queue.shares["c"].seconds == pytest.approx(charged)


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
        assert not time.turns and time.running == [0, 0] and time.base_at == 2001


def test_time_in_which_an_interactive_client_s_kernels_go_first_is_charged_to_it_alone() -> None:
    spans = [("a", 0, 6), ("b", 0, 8), ("i", 1, 3), ("j", 2, 4)]
    time = DeviceTime()
    for client, begins, ends in spans:
        time.add(client, Event(begins), Event(ends), first=client in "ij")
    Event.now = 10.0
    found = {client: seconds * 1e3 for client, seconds, _ in time.measured()}
    assert found == pytest.approx({"i": 1.5, "j": 1.5, "a": 0.5 + 1.0, "b": 0.5 + 1.0 + 2.0})
    assert sum(found.values()) == pytest.approx(8.0), "the device was busy for so long"


def test_a_user_gets_no_more_by_calling_its_trainer_interactive() -> None:
    """A device with priorities, and two users of one weight, each of whose calls takes 3 ms."""
    queue, left, began, now = FairQueue(), dict[str, float](), dict[str, float](), 0.0
    done, time = {"first": 0, "other": 0}, DeviceTime()
    for client in done:
        queue.introduce(Came(client, 4.0 if client == "first" else 1.0, 0, client, 1.0, 0, client == "first"))
        for _ in range(1000):
            queue.put(client, Run(client, 1, (), []), 0.0)
    while now < 1500.0:
        while (client := queue.next(None, (), left.__contains__)) is not None:
            queue.take(client, now)
            left[client], began[client] = 3.0, now
        running = "first" if "first" in left else "other"
        now += left.pop(running)
        Event.now = now
        time.add(running, Event(began[running]), Event(now), first=running == "first")
        done[running] += 1
        for client, seconds, _ in time.measured():
            queue.charge(client, seconds)
    assert done["first"] / done["other"] == pytest.approx(1.0, rel=0.05), done


def test_events_of_turns_that_are_done_serve_others() -> None:
    time, flight = DeviceTime(), InFlight()
    Event.now = 10.0
    turns = [time.add("a", Event(n), Event(n + 1), 2) for n in range(3)]
    late = time.add("a", Event(3), Event(30), 2)
    for turn in (*turns, late):
        flight.add(turn)
    time.measured()
    assert time.base is turns[0].begins and {id(e) for e in time.spare} == {
        id(e) for turn in turns for e in (turn.begins, turn.ends) if e is not time.base
    }
    for event in time.spare:
        event.at = 50.0  # recorded again, of a turn that the device has yet to come to
    assert flight.at_least(2) and not flight.at_least(3) and list(flight.turns) == [late]


def test_two_clients_that_keep_a_device_busy_have_time_by_their_weights() -> None:
    """A device that divides itself evenly among clients with a call there, each of which takes 3 ms alone."""
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


class Streams(ClientStreams):
    """Streams of a device whose events are `Event`s."""

    def __init__(self) -> None:
        super().__init__(torch.device("cuda"))
        self.shared, self.now = True, 0.0
        Event.now = 0.0

    def use(self, client: str) -> None:
        self.streams.setdefault(client, (self, self))

    def wait_event(self, event: Event) -> None:
        assert event.at == self.now, "the last of those before"

    def pair(self) -> Any:
        return (self, self)

    def _mark(self, spare: list[Any], timed: bool = False) -> Any:
        return Event(self.now)

    def turn(self, client: str, ms: float, calls: int = 99, alone: bool = False) -> int:
        """One turn, up to the most calls in flight; each takes so long."""
        self.begin(client)
        while self.launched < calls and not self.full(client, alone):
            self.now += ms
            self.called(client)
        launched = self.launched
        self.end(client)
        return launched


def test_calls_of_clients_of_other_weights_have_one_order_on_a_device_and_interactive_ones_overtake() -> None:
    streams = Streams()
    streams.ordered, streams.preferred = True, {"i"}
    assert streams.turn("i", 1.0) == IN_FLIGHT
    assert streams.turn("a", 1.0) == 1 and not streams.behind("b", False), "one is under way, and one may wait behind it"
    assert streams.turn("b", 1.0) == 1
    assert streams.behind("a", False) and streams.behind("b", False) and streams.behind("c", False)
    Event.now = 3.0
    assert not streams.behind("i", False) and not streams.behind("a", False) and streams.behind("b", False)
    streams.ordered = False
    assert streams.behind("b", False) and not streams.behind("c", False) and streams.turn("c", 1.0) == IN_FLIGHT


@pytest.mark.parametrize("ms", [0.001, 0.13, 2.0])
def test_a_client_has_two_calls_in_flight_while_another_waits(ms: float) -> None:
    streams = Streams()
    for _ in range(20):
        began = streams.now
        assert streams.turn("a", ms) == IN_FLIGHT == 2 and streams.behind("a", False)
        Event.now = began + 1.5 * ms
        assert streams.behind("a", False), "the next turn has two again: a turn costs more than the launch of a short call"
        Event.now = streams.now
        assert not streams.behind("a", False)
        streams.measured()


def test_a_client_of_short_calls_has_more_of_them_in_flight_while_nobody_waits() -> None:
    streams = Streams()
    for client, ms, most in (("long", 0.2, IN_FLIGHT), ("short", 0.05, MANY)):
        for _ in range(30):
            streams.turn(client, ms, alone=True)
            Event.now = streams.now
            streams.measured()
        began = streams.now
        assert streams.turn(client, ms, alone=True) == most // 2 and not streams.behind(client, True), client
        assert streams.turn(client, ms, alone=True) == most // 2 and streams.behind(client, True), client
        Event.now = began + (most // 2 + 0.1) * ms
        assert not streams.behind(client, True), "the next turn begins before the device is done with the last"
        assert streams.behind(client, False), "but not if another waits"


def test_the_device_is_asked_only_where_as_many_seem_to_be_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, asked = Streams(), []
    query = Event.query
    monkeypatch.setattr(Event, "query", lambda self: asked.append(1) or query(self))
    assert not streams.behind("a", False) and streams.turn("a", 1.0) == 2 and not asked
    assert streams.behind("a", False) and len(asked) == 1


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
    assert not queue.even({"a", "b", "i"}), "each of one user's two has half the share of the other's one"
    assert queue.even({"a", "b", "i", "z"})


def test_a_collective_ends_on_its_client_s_stream_though_another_s_turn_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another stream its kernels would not wait for those of its client, and its results would lie in memory that the other
    client has again as soon as they are freed."""
    engine, on = make("numpy"), ["nobody"]
    engine.streams = SimpleNamespace(shared=False, use=lambda client: on.append(client))
    launched: list[tuple[str, str]] = []
    for name in ("load", "store"):
        run = getattr(engine, name)
        monkeypatch.setattr(engine, name, lambda *a, n=name, run=run: launched.append((n, on[-1])) or run(*a))
    core = Worker(engine)
    peers = Peers(tuple(Peer(i, f"w{i}", f"ipc://w{i}", "here") for i in (0, 1)))
    for message in (Welcome("w0", 0), peers):
        core.handle(Mail(DISPATCHER, message))
    reduce = KindDef(7, "all_reduce", ((float32.code, 2), (-2,)), ((0, 1), "sum"))
    core.handle(Mail(DISPATCHER, Run("c", 1, (FILL, reduce), [(1, 1, 5.0), (7, 2, 1, 2)])))
    assert core.parked is not None
    core.handle(Mail("other", Upload("other", 1, (float32.code, 2)), (bytes(8),)))
    assert on[-1] == "other" and launched.pop() == ("load", "other")
    core.handle(Mail("#1", Piece(1, "c", 2), (bytes(8),)))
    assert core.parked is None and core.spaces["c"].table[2].tolist() == [5.0, 5.0]
    assert {client for _, client in launched} == {"c"} and {name for name, _ in launched} == {"load", "store"}


def test_an_acknowledgement_to_a_lone_client_waits_for_the_kernels_before_the_last_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So the device has the kernels of one more message while the worker takes the next."""
    waited: list[float] = []
    monkeypatch.setattr(Event, "synchronize", lambda self: waited.append(self.at), raising=False)
    streams = Streams()
    for streams.current in ("a", "b"):
        for streams.now in (1.0, 2.0, 3.0):
            streams.keep_up()
    assert waited == [1.0, 2.0] * 2
    streams.current = "a"
    streams.forget("b")
    assert list(streams.marks) == ["a"]


def test_the_wait_for_the_device_before_an_acknowledgement_ends_when_another_client_asks() -> None:
    """A trainer that is alone has several steps in flight, for all of which the first question of another would wait."""
    engine, streams, asked = make("numpy"), Streams(), deque[Run]()
    engine.streams, streams.shared = streams, False  # type: ignore[assignment]
    core, looks = Worker(engine), count()

    def take_in() -> bool:
        if next(looks) == 5:
            asked.append(Run("b", 2, (), [(1, 2, 5.0)]))
        while asked:
            turns.put("b", asked.popleft())
        return True

    turns = ClientTurns(core, count().__next__, take_in, lambda: False, lambda mails: None)
    turns.put("b", Run("b", 1, (FILL,), [(1, 1, 5.0)]))
    turns.serve("b")
    for serial in (1, 2):
        streams.now = Event.now + 1  # the device never comes to it
        turns.put("a", Run("a", serial, (FILL,), [(1, serial, 5.0)], (), True))
        assert turns.next() == "a"
        turns.serve("a")
    assert next(looks) == 6 and turns.next() == "b"
