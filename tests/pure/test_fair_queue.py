"""The order of clients' runs: device time divided by weight, collectives in the dispatcher's order."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gt.spec import float32
from gt.transport.messages import Came, Drop, KindDef, Run, TraceDef
from gt.worker.fair_queue import FairQueue

EXP = KindDef(1, "exp", ((float32.code, 2),), ())
ALL_REDUCE = KindDef(2, "all_reduce", ((float32.code, 2),), ((0, 1), "sum"))


def run(client: str, *code: tuple, kinds: tuple = (), traces: tuple = ()) -> Run:
    return Run(client, 1, kinds, list(code), traces=traces)


def serve(queue: FairQueue, seconds: float = 1.0, parked: str | None = None, preempted: Any = ()) -> str | None:
    """A turn of whoever is next: one message, begun and ended."""
    client = queue.next(parked, preempted)
    if client is not None:
        if client not in preempted:
            queue.take(client, 0.0)
            if queue.collective_run_begun:
                queue.ended()
        queue.charge(client, seconds)
    return client


def test_a_client_is_served_in_its_own_order() -> None:
    queue = FairQueue()
    for n in range(3):
        queue.put("a", run("a", (1, n, 0)), 0.0)
    assert [queue.take("a", 0.0).code[0][1] for _ in range(3)] == [0, 1, 2]
    assert queue.next(None, ()) is None


def test_device_time_is_shared_by_weight() -> None:
    queue = FairQueue()
    queue.introduce(Came("a", 3.0))
    for _ in range(400):
        queue.put("a", run("a"), 0.0)
        queue.put("b", run("b"), 0.0)
    turns = Counter(serve(queue) for _ in range(400))
    assert turns == {"a": 300, "b": 100}
    stats = queue.stats()
    assert (stats["a"]["entitled"], stats["b"]["entitled"]) == (300.0, 100.0)


def test_a_user_with_many_clients_has_no_more_than_its_share() -> None:
    queue = FairQueue()
    for client in ("a0", "a1", "a2", "b"):
        queue.introduce(Came(client, 1.0, 0, client[0], 2.0))
        for _ in range(400):
            queue.put(client, run(client), 0.0)
    turns = Counter(serve(queue) for _ in range(600))
    assert turns["b"] == 300 and {turns[c] for c in ("a0", "a1", "a2")} == {100}


def test_a_user_gets_no_more_by_coming_back_as_another_client() -> None:
    queue = FairQueue()
    queue.introduce(Came("b", 1.0, 0, "b", 1.0))
    for _ in range(200):
        queue.put("b", run("b"), 0.0)
    seconds: Counter[str] = Counter()
    for n in range(200):  # a client of Alice comes with one long kernel, and goes or idles when that has run
        client = f"a{n}"
        queue.introduce(Came(client, 1.0, 0, "alice", 1.0))
        queue.put(client, run(client), 0.0)
        while client in queue.active and sum(seconds.values()) < 150:
            served = queue.next(None, ())
            if served is None:
                break
            queue.take(served, 0.0)
            took = 5.0 if served == client else 1.0
            queue.charge(served, took)
            seconds[served[0]] += took
        if n % 2:
            queue.forget(client)
    assert abs(seconds["a"] - seconds["b"]) <= 5.0, seconds


def test_a_user_that_was_idle_has_saved_nothing_up_and_owes_nothing() -> None:
    queue = FairQueue()
    for client in ("a", "b"):
        queue.introduce(Came(client, 1.0, 0, client, 1.0))
    for _ in range(50):
        queue.put("b", run("b"), 0.0)
        serve(queue)
    queue.introduce(Came("a2", 1.0, 0, "a", 1.0))
    for _ in range(20):
        for client in ("a2", "b"):
            queue.put(client, run(client), 0.0)
    turns = [serve(queue) for _ in range(10)]
    assert turns[0] == "a2" and Counter(turns) == {"a2": 5, "b": 5}


def test_a_user_divides_its_share_by_priority_and_may_ask_for_less() -> None:
    queue = FairQueue()
    for client, weight in (("a0", 4.0), ("a1", 1.0), ("b", 0.25)):
        queue.introduce(Came(client, weight, 0, client[0]))
        for _ in range(400):
            queue.put(client, run(client), 0.0)
    turns = Counter(serve(queue) for _ in range(500))
    assert (turns["a0"], turns["a1"], turns["b"]) == (320, 80, 100)


def test_a_client_with_long_runs_has_fewer_turns() -> None:
    queue, seconds = FairQueue(), Counter[str]()
    for _ in range(200):
        queue.put("long", run("long"), 0.0)
        queue.put("short", run("short"), 0.0)
    for _ in range(150):
        client = queue.next(None, ())
        assert client is not None
        cost = 5.0 if client == "long" else 1.0
        serve(queue, cost)
        seconds[client] += cost
    assert abs(seconds["long"] - seconds["short"]) <= 5.0


def test_a_client_that_was_idle_has_saved_nothing_up() -> None:
    queue = FairQueue()
    queue.put("idle", run("idle"), 0.0)
    assert serve(queue) == "idle"
    for _ in range(100):
        queue.put("busy", run("busy"), 0.0)
    for _ in range(50):
        assert serve(queue) == "busy"
    for _ in range(50):
        queue.put("idle", run("idle"), 0.0)
    assert Counter(serve(queue) for _ in range(20)) == {"idle": 10, "busy": 10}


def test_a_new_client_does_not_wait_for_those_before_it_nor_they_for_it() -> None:
    queue = FairQueue()
    for _ in range(100):
        queue.put("old", run("old"), 0.0)
    for _ in range(50):
        serve(queue)
    for _ in range(50):
        queue.put("new", run("new"), 0.0)
    assert Counter(serve(queue) for _ in range(20)) == {"new": 10, "old": 10}


def test_runs_with_collectives_keep_their_order_and_others_overtake() -> None:
    queue = FairQueue()
    queue.put("a", run("a", (2, 1, 0), kinds=(EXP, ALL_REDUCE)), 0.0)
    queue.put("b", run("b", (2, 1, 0), kinds=(ALL_REDUCE,)), 0.0)
    queue.put("b", run("b", (1, 2, 1)), 0.0)
    queue.put("c", run("c", (1, 1, 0), kinds=(EXP,)), 0.0)
    assert queue.next(None, ()) == "a"
    queue.take("a", 0.0)  # begun: it waits for other workers
    assert queue.next("a", ()) == "c" and queue.others("a", "a", ())
    queue.take("c", 0.0)
    assert queue.next("a", ()) is None and not queue.others("a", "a", ())
    queue.ended()
    assert queue.next(None, ()) == "b"


def test_a_trace_that_holds_a_collective_is_one() -> None:
    queue = FairQueue()
    trace = TraceDef(9, 1, [(2, 2, 1)], (2,))
    queue.put("a", run("a", kinds=(ALL_REDUCE,), traces=(trace,)), 0.0)
    queue.put("a", run("a", (9, 5, 4)), 0.0)
    queue.put("b", run("b", (1, 1, 0), kinds=(EXP,)), 0.0)
    assert list(queue.collective_runs) == ["a"]


def test_a_call_interrupted_for_another_client_goes_on_by_the_same_rule() -> None:
    queue = FairQueue()
    queue.put("a", run("a"), 0.0)
    queue.put("b", run("b"), 0.0)
    assert queue.next(None, ()) == "a"
    queue.take("a", 0.0)
    queue.charge("a", 1.0)
    assert queue.next(None, ("a",)) == "b" and queue.others("a", None, ("a",))
    queue.take("b", 0.0)
    queue.charge("b", 2.0)
    assert queue.next(None, ("a",)) == "a"


def test_the_end_of_a_client_comes_behind_its_work_and_leaves_nothing() -> None:
    queue = FairQueue()
    queue.put("a", run("a", (1, 1, 0)), 0.0)
    queue.put("a", Drop("a"), 0.0)
    assert isinstance(queue.take("a", 2.0), Run) and isinstance(queue.take("a", 2.0), Drop)
    assert queue.stats()["a"]["wait_p50"] == 2.0
    queue.forget("a")
    assert not queue.shares and not queue.active and queue.instructions == 0


clients = st.sampled_from("abcd")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(clients, st.booleans()), max_size=60), st.randoms(use_true_random=False))
def test_all_workers_begin_collectives_in_one_order_and_nobody_starves(sent: list, chance: Any) -> None:
    orders = []
    for _ in range(2):  # workers at different paces
        queue, begun, served = FairQueue(), [], Counter[str]()
        for client, collective in sent:
            number = 2 if collective else 1
            queue.put(client, run(client, (number, served[client], 0), kinds=(EXP, ALL_REDUCE)), 0.0)
        left = len(sent)
        while (client := queue.next(None, ())) is not None:
            message = queue.take(client, 0.0)
            if message.code[0][0] == 2:
                begun.append(client)
                queue.ended()
            queue.charge(client, chance.random())
            left -= 1
        assert left == 0 and not queue.collective_runs
        orders.append(begun)
    assert orders[0] == orders[1] == [c for c, collective in sent if collective]


def test_a_newcomer_is_one_that_was_idle_and_has_had_no_more() -> None:
    queue = FairQueue()
    for client in ("busy", "other"):
        queue.put(client, run(client), 0.0)
        queue.put(client, run(client), 0.0)
    queue.take("busy", 0.0)
    queue.charge("busy", 1.0)
    arrivals = queue.arrivals
    assert not queue.newcomer("busy", arrivals), "who was waiting when the turn began waits for its end"
    queue.put("idle", run("idle"), 0.0)
    assert queue.newcomer("busy", arrivals) and not queue.newcomer("busy", queue.arrivals)
    queue.shares["idle"].virtual = 2.0
    assert not queue.newcomer("busy", arrivals), "nor does it push ahead of one that has had less"


def test_a_second_drop_of_a_client_is_served_after_the_first() -> None:
    """A dispatcher drops a client again if one of its connections comes to light after its departure."""
    queue = FairQueue()
    for number in (1, 0):
        queue.put("a", Drop("a", number), 0.0)
    for number in (1, 0):
        assert queue.next(None, ()) == "a"
        assert queue.take("a", 0.0).number == number
        queue.forget("a")
    assert queue.next(None, ()) is None and not queue.shares
