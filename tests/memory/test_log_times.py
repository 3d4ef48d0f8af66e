"""The instruction log has the time of each op, also of those inside of programs that are replayed."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gt
from gt.testing import cluster
from gt.testing.cluster import Cluster
from gt.watch import log_file
from gt.watch.doctor import diagnose, text
from gt.watch.events import Activity
from gt.watch.log import InstructionLog
from gt.watch.log_file import LogThread, prepared
from gt.watch.log_reader import read, read_log
from gt.watch.stats import amount
from tests.memory.clock import Clock

pytestmark = pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE", "GT_AUTO_COMPILE")
SLOW = 0.25  # seconds by a clock that nothing else advances
STEPS = 150  # a loop is replayed after some of them


def observe(made: Cluster, local: Callable[[str, str, Any], None]) -> None:
    """Have the dispatcher call `local`, as a server does with a log."""
    observers = made.dispatcher.observers
    observers.local, observers.on, observers.sends = local, True, True
    for mail in observers.send_levels():
        made.hub.post("dispatcher", mail)
    made.hub.deliver()


@contextmanager
def logged(made: Cluster, path: Path) -> Iterator[list[Activity]]:
    """The work that the log tells, after the block."""
    log, found = LogThread(str(path), 1 << 24, lambda line: None), list[Activity]()
    observe(made, log)
    yield found
    made.settle()
    for session in made.sessions:
        session.reports.end()  # as a session's end does
    made.settle()
    log.close()
    found += read_log(path.read_text().splitlines()).work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That of the log; `timed` gives it to a cluster."""
    made = Clock()
    monkeypatch.setattr(log_file, "time", SimpleNamespace(time=made))
    return made


def timed(made: Cluster, clock: Clock) -> Cluster:
    made.dispatcher.observers.clock = clock
    for worker in made.workers:
        worker.clock = clock
    return made


def delayed(made: Cluster, op: str, before: Callable[[], Any]) -> None:
    """Have `before` run before the kernel of an op on the first worker."""
    engine = made.workers[0].engine
    kernel, over = engine.kernel, engine.over

    def slowed(kind):
        run = kernel(kind)
        return run if kind.row.name != op else lambda *operands: (before(), run(*operands))[1]

    engine.kernel = slowed  # type: ignore[method-assign]
    engine.over = lambda kind: over(kind) if kind.row.name != op else None  # type: ignore[method-assign]


def by_name(work: list[Activity]) -> dict[str, list[float]]:
    """The seconds of each op of the loop."""
    found = defaultdict[str, list[float]](list)
    for w in work:
        if w.group == "elementwise":
            found[w.name].append(w.seconds)
    return dict(found)


def loop() -> None:
    x, a = gt.tensor(np.ones((8, 8), "float32")), gt.full((8, 8), 0.5)
    for _ in range(STEPS):
        x = (((x * a + 1).sin() - a) * a + 1).abs() * a
    x.numpy()


@pytest.mark.parametrize("steps", [5, 60])  # one by one, and replayed
def test_the_doctor_lists_gathers_of_a_log_with_their_rule_and_line(tmp_path: Path, steps: int) -> None:
    with cluster(2, engine="numpy") as made:
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with gt.signal("rows"):
            x = gt.tensor(np.eye(64, dtype="float32"))
        w = gt.tensor(np.ones((64, 64), "float32"))
        made.settle()
        with logged(made, tmp_path / "ops.log"):
            for _ in range(steps):
                (w @ x).sum().item()
                gt.linalg.inv(x).sum().item()  # needs all of it
    told = read(tmp_path / "ops.log")
    [found] = [finding for finding in diagnose(told) if finding.sort == "gathers"]
    assert found.text.startswith(f"{steps} times a tensor was gathered ({amount(2 * steps * 64 * 64 * 4)} in all")
    assert found.advice.startswith("matmul takes its operand 2 sharded if its operands are laid out as (Replicate(), Shard(1))")
    assert found.line.startswith("test_log_times.py:") and "gt trace" not in text(told)


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_a_slow_op_of_a_replayed_loop_is_found_by_its_own_time(tmp_path: Path, clock: Clock, engine: str) -> None:
    with cluster(1, engine=engine) as made:
        delayed(timed(made, clock), "sin", lambda: clock.advance(SLOW))
        with logged(made, tmp_path / "log") as work:
            loop()
            [stats] = gt.debug.get_worker_stats().values()
    assert stats["traces"]["calls"] > 5 and stats["traces"]["launches_saved"] > 30, "most ops ran inside of programs"
    fast = {"mul": [0.0] * (3 * STEPS), "add": [0.0] * (2 * STEPS), "sub": [0.0] * STEPS, "abs": [0.0] * STEPS}
    assert by_name(work) == {**fast, "sin": [SLOW] * STEPS}, "each op has a line"


def test_ops_that_numpy_runs_for_pytorch_have_times_of_their_own(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy_traces = pytest.importorskip("gt.worker.engine.torch.numpy_traces")

    def slow(*arrays: np.ndarray) -> np.ndarray:
        clock.advance(SLOW)
        return np.subtract(*arrays)

    began = clock()
    monkeypatch.setitem(numpy_traces.FUNCTIONS, "sub", slow)
    with cluster(1, engine="pytorch") as made, logged(timed(made, clock), tmp_path / "log") as work:
        x, a = gt.tensor(np.ones((8, 8), "float64")), gt.full((8, 8), 0.5, dtype=gt.float64)
        for _ in range(STEPS):
            x = (((x * a + 1) * a - a) * a + 1) * a
        x.numpy()
        [stats] = gt.debug.get_worker_stats().values()
    calls, found = stats["traces"]["numpy_calls"], by_name(work)
    assert 3 < calls <= (ran := round((clock() - began) / SLOW)) < STEPS, "a call has several steps"
    assert Counter(found.pop("sub")) == {0.0: STEPS - ran, SLOW: ran}
    assert {seconds for there in found.values() for seconds in there} == {0.0}, found


def test_the_last_lines_name_the_op_at_which_a_program_hangs() -> None:
    """Reports come from a thread of the worker, also while a kernel does not end."""
    lines: list[str] = []
    log, hung = InstructionLog(), list[str]()

    def see(event: str, who: str, what: Any) -> None:
        lines.extend(line for _, line in log.lines(time.time(), event, who, prepared(event, what)[0]))

    def look() -> None:
        """The lines of the log while the kernel runs: the op behind as many as have ended."""
        for mail in worker.reports():
            made.dispatcher.observers.report(next(iter(made.dispatcher.tables.by_peer)), mail.message)
        sent = [line for line in lines if line.startswith("WORKER_SEND")]
        ended = sum(line.startswith("WORKER_RECV") for line in lines)
        hung.append(sent[ended].split("op=")[1].split()[0])

    with cluster(1, engine="numpy") as made:
        worker = made.workers[0]
        worker.prompt = False  # reports are taken here, as the worker's thread does
        delayed(made, "sin", look)
        observe(made, see)
        loop()
    assert hung == ["sin"] * STEPS


def test_an_instruction_that_failed_is_told_so_in_a_report_before_its_run_ends() -> None:
    lines: list[str] = []
    log = InstructionLog()

    def see(event: str, who: str, what: Any) -> None:
        lines.extend(line for _, line in log.lines(time.time(), event, who, prepared(event, what)[0]))

    def fail() -> None:
        report()  # while the instruction lasts: it is told by a later one
        raise ValueError("a kernel that fails")

    def report() -> None:
        for mail in worker.reports():
            made.dispatcher.observers.report(next(iter(made.dispatcher.tables.by_peer)), mail.message)

    with cluster(1, engine="numpy") as made:
        worker = made.workers[0]
        worker.prompt = False
        delayed(made, "sin", fail)
        delayed(made, "tanh", report)
        observe(made, see)
        x = gt.tensor(np.ones((8, 8), "float32"))
        kept = x.sin(), x.tanh()
        kept[1].numpy()
        report()
    ended = [line for line in lines if line.startswith("WORKER_RECV") and "success=False" in line]
    assert len(ended) == 1, lines


def test_nobody_is_told_of_instructions_inside_of_programs_without_a_log() -> None:
    with cluster(1, engine="numpy") as made:
        loop()
        ready = [r for _, _, r in made.workers[0].spaces.popitem()[1].kinds.values() if hasattr(r, "lowered")]
    assert ready and not any("timed" in vars(r) for r in ready)
