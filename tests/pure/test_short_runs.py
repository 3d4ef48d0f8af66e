"""The short runs of other clients that are executed during a long kernel of the current one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gt.program.code import FREE
from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport.messages import Came, Fetch, KindDef, Mail, Run, Welcome
from gt.worker.client_turns import ClientTurns
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.fair_queue import FairQueue
from gt.worker.peer_names import DISPATCHER
from gt.worker.short_runs import SHORT, is_short

FILL = KindDef(1, "full", ((-3,),), ((2,), float32.code))
DOUBLE = KindDef(2, "add", ((float32.code, 2), (float32.code, 2)), ())
LARGE = KindDef(3, "full", ((-3,),), ((256, 256), float32.code))


def test_next_runs_of_others_are_those_of_clients_with_no_more_virtual_time() -> None:
    queue = FairQueue()
    for client, virtual in (("c", 1.0), ("less", 0.5), ("more", 3.0), ("same", 1.0), ("asks", 0.0)):
        queue.put(client, Run(client, 1, (), [(1, 1, 5.0)]) if client != "asks" else object(), 0.0)
        queue.shares[client].virtual = virtual
    assert [client for client, _ in queue.first_runs("c", 0.0)] == ["less", "same"]
    assert [client for client, _ in queue.first_runs("c", 2.0)] == ["less", "same", "more"]
    reduce = KindDef(4, "all_reduce", ((float32.code, 2),), ((0, 1), "sum"))
    queue.put("less", Run("less", 2, (), [(1, 2, 5.0)]), 0.0)
    queue.shares["same"].messages.clear()
    queue.put("same", Run("same", 2, (reduce,), [(4, 2, 1)]), 0.0)
    assert [client for client, _ in queue.first_runs("c", 0.0)] == ["less"], "runs with collectives keep their order"


class Pool:
    """A worker with the clients a, whose turn it is, and b."""

    def __init__(self) -> None:
        self.core, self.sent, self.now = Worker(make("numpy")), list[Mail](), 0.0
        self.core.handle(Mail(DISPATCHER, Welcome("w0", 0)))
        self.turns = ClientTurns(self.core, self.clock, lambda: True, lambda: False, self.sent.extend)
        self.turns.second = SimpleNamespace(inside=True, for_all=True, is_current=lambda: True, check=lambda: None)
        for client in ("a", "b"):
            self.turns.put(client, Run(client, 1, (FILL, DOUBLE, LARGE), [(1, 1, 5.0)]))
            self.turns.serve(client)
        self.turns.next()
        self.turns.client, self.turns.began = "a", self.now

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def ask(self, *code: Any, client: str = "b", **more: Any) -> None:
        self.turns.put(client, Run(client, 2, (), list(code), (Fetch(7, 2, (float32.code, 2), (0,), (2,)),), **more))

    def answers(self) -> list[Any]:
        self.turns.serve_short()
        found = [mail.message.ticket for mail in self.sent]
        self.sent.clear()
        return found


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_a_short_run_is_executed_charged_and_answered_within_another_s_turn(pool: Pool) -> None:
    turn, share = pool.core.executor.turn, pool.turns.queue.shares["b"]
    before, began = share.seconds, pool.turns.began
    pool.ask((2, 2, 1, 1))
    assert pool.answers() == [7] and pool.core.spaces["b"].table[2].tolist() == [10.0, 10.0]
    assert share.seconds > before and pool.turns.stats()["short_runs"] == 1
    assert (pool.turns.client, pool.turns.began, pool.core.executor.turn) == ("a", began, turn), "a's turn goes on"


def test_during_a_shorter_kernel_interactive_clients_alone_are_served(pool: Pool) -> None:
    assert pool.turns.second is not None and not pool.turns.asked()
    pool.turns.second.for_all = False
    pool.ask((2, 2, 1, 1))
    assert pool.answers() == []
    pool.turns.queue.introduce(Came("a", interactive=True))
    assert not pool.turns.asked(), "it is a's turn"
    pool.turns.queue.introduce(Came("b", interactive=True))
    assert pool.turns.asked() and pool.answers() == [7]
    for client in ("a", "b"):
        pool.turns.queue.shares[client].messages.clear()
        pool.turns.queue.forget(client)
    assert not pool.turns.asked(), "both have left"


def test_its_own_runs_large_kernels_and_what_waits_behind_them_wait_for_a_turn(pool: Pool) -> None:
    pool.ask((2, 2, 1, 1), client="a")
    assert pool.answers() == [], "a's next run does not overtake the one with the long kernel"
    pool.ask((3, 3, 5.0), (2, 2, 1, 1))
    pool.ask((2, 2, 1, 1))
    assert pool.answers() == []
    pool.turns.queue.shares["b"].messages.clear()
    pool.core.preempted["b"] = pool.core  # type: ignore[assignment]
    pool.ask((2, 2, 1, 1))
    assert pool.answers() == [], "b has begun a run"
    del pool.core.preempted["b"]
    assert pool.answers() == [7]


def test_it_stops_when_the_kernel_has_ended(pool: Pool) -> None:
    pool.ask((2, 2, 1, 1))
    assert pool.turns.second is not None
    pool.turns.second.inside = False
    assert pool.answers() == []


def test_runs_that_define_kinds_or_call_long_programs_are_not_short(pool: Pool) -> None:
    values = pool.core.spaces["b"]
    trace = TraceDef(9, 1, [(2, 2, 1, 1), (2, 3, 2, 2)], (3,))
    pool.core.handle(Mail(DISPATCHER, Run("b", 2, (), [(9, 5, 1)], (), False, 0, (trace,))))
    call = Run("b", 3, (), [(9, 6, 1)])
    assert is_short(values, call)
    values.kinds[9][2].seconds = 2 * SHORT
    assert not is_short(values, call)
    assert is_short(values, Run("b", 3, (), [(1, 4, 1.0), (FREE, 4)])) and not is_short(
        values, Run("b", 3, (FILL,), [(1, 4, 1.0)])
    )
    assert not is_short(values, Run("b", 3, (), [(77, 4, 1.0)])), "an unknown kind is refused in its turn"
    assert not is_short(values, Run("b", 3, (), [(1, n, 1.0) for n in range(1000)]))


def test_refused_definitions_and_products_in_a_precision_are_left_to_their_client_s_turn() -> None:
    worker = Worker(make("numpy"))
    worker.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    square = (float32.code, 2, 2)
    products = tuple(KindDef(n, "matmul", (square, square), (), precision=p) for n, p in ((4, ""), (5, "medium")))
    unknown, invalid = KindDef(6, "no_such_op", (square,), ()), TraceDef(7, 1, [(99, 2, 1)], (2,))
    traces = [TraceDef(n, 1, [(k, 2, 1, 1)], (2,)) for n, k in ((8, 4), (9, 5))]
    worker.handle(Mail(DISPATCHER, Run("c", 1, (*products, unknown), [], traces=(invalid, *traces))))
    runs = {n: Run("c", 2, (), [(n, 2, 1, 1) if n < 6 else (n, 2, 1)]) for n in range(4, 10)}
    assert [n for n, run in runs.items() if is_short(worker.spaces["c"], run)] == [4, 8]
