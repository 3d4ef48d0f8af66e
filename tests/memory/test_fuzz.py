"""A bounded sample of `make fuzz`: hostile messages while another client computes."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, repeat
from types import SimpleNamespace
from typing import Any

import pytest

import gt
from gt.dispatcher.rewrite import Rewriter
from gt.dispatcher.stream import Stream
from gt.dispatcher.tables import Entry, KindPlans
from gt.errors import ProtocolError, RemoteError
from gt.spec import float32
from gt.testing import fuzz
from gt.testing.fuzz import Fuzz, noise, runs
from gt.testing.hostile import record
from gt.transport import messages as m
from gt.transport.checks import kind_in
from gt.transport.messages import KindDef
from gt.worker import executor
from gt.worker.core import Worker
from gt.worker.fair_queue import FairQueue

SESSIONS: list[list[m.Message]] = []


@pytest.fixture
def sessions() -> list[list[m.Message]]:
    if not SESSIONS:
        SESSIONS.extend(record(2))
    return SESSIONS


def test_recorded_sessions_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a seed would not send its messages again. The second is recorded on a machine on which time stands still at first,
    and then a second passes between any two looks at the clock."""
    ticks = chain(repeat(0.0, 400), count(1.0))
    clocks = [time.time, lambda: next(ticks)]
    first, second = [(monkeypatch.setattr(time, "time", c), record(2))[1] for c in clocks]  # one line, as traces have lines
    assert first == second


SOME = [(2, 1, 5_000), (1, 2, 5_000), (3, 3, 3_000)]
MORE = [pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 1, 10_000), (2, 5, 10_000), (1, 2, 15_000), (3, 3, 5_000))]


@pytest.mark.parametrize(("workers", "seed", "count"), [*SOME, *MORE])
def test_hostile_messages_harm_nobody_and_every_read_is_answered(
    workers: int, seed: int, count: int, sessions: list[list[m.Message]]
) -> None:
    fuzz = Fuzz(seed, workers, sessions=sessions)
    assert fuzz.run(count) == count
    assert sum(w.stats()["instructions"] for w in fuzz.pool.workers) > count // 2  # much of it came as far as a kernel
    assert fuzz.pool.dispatcher.tables.dropped > count // 10


@pytest.mark.parametrize(("workers", "seed", "count"), [(2, 1, 300), pytest.param(3, 2, 3_000, marks=pytest.mark.slow)])
def test_hostile_clients_with_collectives_in_flight_harm_nobody(
    workers: int, seed: int, count: int, sessions: list[list[m.Message]]
) -> None:
    """They send any message, and leave, while collectives are in flight; workers hear of it in any order."""
    fuzz = Fuzz(seed, workers, sessions=sessions, scheduled=True)
    assert fuzz.run(count) == count
    for worker in fuzz.pool.workers:
        assert worker.executor.collectives_begun.total() > count // 3 and worker.executor.skipped > count // 10


def test_the_fuzzer_notices_collectives_that_overtake_one_another(
    sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FairQueue, "_can_begin", lambda self, share: bool(share.messages))
    by_a_bystander = "expected worker .* at the same collective|no reply to a read|reads .* were not answered"
    with pytest.raises((AssertionError, RemoteError, RuntimeError), match=f"a worker waits|out of step|{by_a_bystander}"):
        Fuzz(1, 2, sessions=sessions, scheduled=True).run(300)


@pytest.mark.parametrize("count", [20_000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_messages_with_bytes_changed_are_no_messages_or_are_handled(count: int, sessions: list[list[m.Message]]) -> None:
    assert noise(4, count, sessions) > count // 6


def test_the_fuzzer_notices_a_read_without_an_answer(sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It can fail: it does where reads of failed results are forgotten."""
    get = Stream._get

    def forgetful(self: Any, client: Any, ticket: int, id: int, *rest: Any) -> int:
        return get(self, client, ticket, id, *rest) if isinstance(client.entries.get(id), Entry) else 0

    monkeypatch.setattr(Stream, "_get", forgetful)
    with pytest.raises(AssertionError, match="were not answered"):
        Fuzz(1, 2, sessions=sessions).run(2_000)


def test_the_fuzzer_notices_a_wrong_value_of_a_bystander(
    sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can fail: it does where the end of a client spoils another's values."""
    drop = Worker._drop

    def spoiling(self: Any, client: str) -> None:
        drop(self, client)
        for values in self.spaces.values():
            values.table.update({id: a + 1 for id, a in values.table.items() if getattr(a, "dtype", None) == "float32"})

    monkeypatch.setattr(Worker, "_drop", spoiling)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        Fuzz(1, 2, sessions=sessions).run(1_000)


def test_the_fuzzer_notices_objects_that_are_kept(sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    Fuzz(1, 2, sessions=sessions).run(1_000)  # modules that are loaded now are loaded before objects are counted
    monkeypatch.setattr(fuzz, "GROWTH", 1_000)
    run = Stream.run
    monkeypatch.setattr(Stream, "run", lambda self, client, batch: kept.append([batch]) or run(self, client, batch))
    with pytest.raises(AssertionError, match="objects more than at the start"):
        Fuzz(1, 2, sessions=sessions).run(1_000)


def test_objects_of_a_compilation_under_way_are_not_the_messages_doing(
    sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    running = threading.Event()

    def compile_all() -> None:
        running.wait(1)
        kept.extend([] for _ in range(2 * fuzz.GROWTH))

    thread = threading.Thread(target=compile_all)
    thread.start()
    monkeypatch.setitem(sys.modules, "gt.worker.engine.torch.inductor", SimpleNamespace(join=thread.join))
    hostile = Fuzz(1, 2, sessions=sessions)
    running.set()
    assert hostile.run(500) == 500 and len(kept) == 2 * fuzz.GROWTH


def test_stretches_that_no_dispatcher_would_write_harm_no_worker(sessions: list[list[m.Message]]) -> None:
    assert runs(6, 5_000, sessions) == 5_000


def test_the_fuzzer_notices_operands_that_the_dispatcher_does_not_compare(
    sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker compares them, too, so nobody is harmed."""
    plan = Rewriter._plan

    def trusting(self: Any, client: Any, use: Any, *rest: Any) -> Any:
        if isinstance(use, KindPlans):
            use.specs = (None,) * len(use.specs)
        return plan(self, client, use, *rest)

    monkeypatch.setattr(Rewriter, "_plan", trusting)
    with pytest.raises(AssertionError, match="accepted an instruction that a worker refused"):
        Fuzz(1, 2, sessions=sessions).run(4_000)


def test_the_fuzzer_notices_a_worker_that_compares_no_operands(
    sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor.InstructionExecutor, "execute", trusting_execute)
    with pytest.raises(AssertionError, match="of Spec"):
        for seed in range(3, 43):  # one seed in four to eight finds it within 1,000 messages
            runs(seed, 1_000, sessions)


def trusting_execute(self: Any, values: Any, code: Any) -> None:
    """An executor without the checks of specs."""
    for ins in code:
        try:
            _, _, ready = values.kinds[ins[0]]
            executor.run_general(values.table, ready, ins)
            values.specs.update(executor.by_result(ins, ready.results))
        except Exception as error:
            self.fail(values, ins, error)


def test_the_fuzzer_notices_a_kernel_that_spins(sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch) -> None:
    """No handler of a kernel's errors keeps that from it."""

    def forever(*operands: Any) -> Any:
        while True:
            pass

    running = Fuzz(1, 1, sessions=sessions)
    monkeypatch.setattr(fuzz, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(running.pool.workers[0].engine, "kernel", lambda kind: forever)
    with pytest.raises(fuzz.TooSlow):
        running.run(2_000)


def test_a_number_of_a_kernel_s_iterations_is_bounded() -> None:
    with gt.testing.cluster(1, engine="numpy"):
        degree = gt.special.legendre_polynomial_p(gt.ones(3), 2.0**60)
        with pytest.raises(gt.errors.RemoteError, match="expected a degree of at most 65536"):
            degree.tolist()


def test_windows_that_a_gradient_does_not_have_are_not_gone_over() -> None:
    wire = (float32.code, 2, 3)
    with pytest.raises(ProtocolError, match="expected trailing dimensions"):
        kind_in(KindDef(1, "adaptive_avg_pool_grad", (wire,), ((7,), (1 << 40,))))
    assert kind_in(KindDef(1, "adaptive_avg_pool_grad", (wire,), ((7,), (3,)))).outs[0].shape == (2, 7)


def test_fuzzing_processes_have_seeds_of_their_own_and_one_that_fails_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds: list[tuple[int, int]] = []

    def stretch(seed: int, workers: int, engine: str, most: int, seconds: float) -> int:
        seeds.append((seed, most))
        if seed == 9:
            raise AssertionError("a read was not answered")
        return most

    monkeypatch.setattr(fuzz, "stretch", stretch)
    monkeypatch.setattr(fuzz, "ProcessPoolExecutor", lambda processes, *_: ThreadPoolExecutor(processes))
    assert fuzz.main(["--count", "100000", "--processes", "3", "--seed", "5"]) == 0
    assert sorted(seeds) == [(5, 40_000), (6, 40_000), (7, 20_000)]
    assert "100000 messages, nobody harmed" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="not answered"):
        fuzz.main(["--count", "1000000", "--processes", "2", "--seed", "8"])
