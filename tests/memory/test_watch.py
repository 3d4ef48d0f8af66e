"""The event stream has the executed ops: names, counts, durations, lines and clients."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import gt
from gt.client.here import here
from gt.client.reports import LOOK, subscribe, unsubscribe
from gt.client.scope import HERE, Scope
from gt.client.user_lines import RING
from gt.dispatcher.core import Dispatcher
from gt.testing import cluster
from gt.testing.cluster import Cluster
from gt.transport import events as e
from gt.transport.messages import VERSION, Batch, Fetch, Hello, Join, KindDef, Mail, Run
from gt.watch.events import Activity, Collective, Free, Move, OpActivity, ProgramCall, Recording, RunEnd, StretchActivity
from gt.watch.log_file import LogThread
from gt.watch.shares import by_client, seconds_by_group, shares
from gt.worker.cancel import Parked
from gt.worker.client_values import ClientValues
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs.compile import TRACE
from gt.worker.run_sample import INSTRUCTION, RUN, SHARE, RunSample
from gt.worker.turns import Preempted, Turn
from tests.memory.clock import Clock

pytestmark = pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE")


@contextmanager
def recorded(made: Cluster, level: int = e.EVERY) -> Iterator[Recording]:
    """The events of this thread's session, observed by itself."""
    session, recording = here().session, Recording()

    def observe(watched: e.Watched) -> None:
        recording.add(watched.events, watched.dropped)

    subscribe(session, level, observe)
    made.settle()
    yield recording
    made.settle()
    if session.reports is not None:
        session.reports.send(0.0)
    made.settle()
    unsubscribe(session, observe)
    made.settle()


def slow(made: Cluster, op: str, seconds: float, worker: int = 0) -> Clock:
    """Have one op take a known time on a worker, and all else none. Returns the clock of all workers."""
    engine, clock = made.workers[worker].engine, Clock()
    kernel = engine.kernel

    def slowed(kind):
        run = kernel(kind)
        return run if kind.row.name != op else lambda *operands: (clock.advance(seconds), run(*operands))[1]

    engine.kernel = slowed  # type: ignore[method-assign]
    for each in made.workers:
        each.clock = clock
    return clock


def executed() -> Counter[str]:
    """How often each op ran on the one worker."""
    [worker] = gt.debug.get_worker_stats().values()
    return Counter(worker["ops"])


def test_every_instruction_is_told_once_with_its_name_group_and_line():
    with cluster(1) as made, recorded(made) as seen:
        x = gt.tensor(np.ones((4, 4), "float32"))
        y = (x @ x).exp()
        total = y.sum()
        total.numpy()
    work = [w for w in seen.work if not isinstance(w, Move)]
    assert [(w.name, w.group) for w in work] == [("matmul", "matmul"), ("exp", "elementwise"), ("sum", "reduce")]
    lines = [seen.line(w).partition(":")[2] for w in work]
    assert lines[0] == lines[1] and int(lines[2]) == int(lines[0]) + 1, lines
    assert all(seen.line(w).startswith("test_watch.py:") for w in work)
    assert [(m.name, m.nbytes) for m in seen.work if isinstance(m, Move)] == [("load", 64), ("read", 4)]
    assert all(a.stop <= b.start + 1e-6 for a, b in zip(seen.work, seen.work[1:])), "one thing after another"
    waited = [i for i in seen.items if isinstance(i, e.Waited)]
    loaded = [i for i in seen.items if isinstance(i, e.Loaded)]
    assert [w.nbytes for w in waited] == [4] and [w.nbytes for w in loaded] == [64]
    assert int(waited[0].line.partition(":")[2]) == int(lines[2]) + 1


def test_a_known_duration_is_told_and_a_known_pause_is_idle():
    with cluster(1) as made:
        clock = slow(made, "matmul", 0.05)
        x = gt.ones(4, 4)
        made.settle()
        with recorded(made) as seen:
            start = clock()
            for _ in range(2):
                (x @ x).numpy()
                clock.advance(0.15)
            stop = clock()
    products = [w for w in seen.work if w.name == "matmul"]
    assert [round(w.seconds, 4) for w in products] == [0.05, 0.05]
    found = {group: round(share, 4) for group, share in shares(seen.work, start, stop).items() if round(share, 4)}
    assert found == {"matmul": 0.25, "idle": 0.75}


def test_a_load_of_products_alone_shows_products_also_where_it_is_a_trace():
    with cluster(1) as made:
        slow(made, "matmul", 0.05)
        x = gt.eye(64)

        def step():
            y = x
            for _ in range(8):
                y = y @ x
            y.numpy()

        for _ in range(4):
            step()
        with recorded(made) as seen:
            step()
    [call] = [w for w in seen.work if isinstance(w, ProgramCall)]
    assert Counter(op[0] for op in call.ops) == {"matmul": 8} and call.source == "trace"
    found = shares(seen.work, call.start, call.stop)
    assert {group: round(share, 6) for group, share in found.items() if round(share, 6)} == {"matmul": 1.0}
    assert "test_watch.py:" in seen.line(call)


def test_unused_ops_of_a_trace_have_no_time_and_are_not_counted():
    with cluster(1) as made:
        x = gt.eye(64)

        def step():
            for _ in range(8):
                x @ x  # noqa: B018
            x.exp().numpy()

        for _ in range(4):
            step()
        before = executed()
        with recorded(made) as seen:
            step()
        assert executed() - before == {"exp": 1}
    [call] = [w for w in seen.work if isinstance(w, ProgramCall)]
    assert len(call.ops) == 9 and [op[0] for op in call.ops if op[2]] == ["exp"]
    assert seconds_by_group([call]) == {"matmul": 0.0, "elementwise": call.seconds}


def test_collectives_name_their_workers_and_the_line_that_wants_them():
    with cluster(2) as made:
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with recorded(made) as seen:
            with gt.signal("rows"):
                x = gt.ones(4, 4)
            total = x.sum(axis=0)
            total.numpy()
    collectives = [w for w in seen.work if isinstance(w, Collective)]
    assert sorted(w.worker for w in collectives) == ["w0", "w1"] and all(w.workers == (0, 1) for w in collectives)
    made_line = next(seen.line(w) for w in seen.work if w.name == "sum")
    assert {seen.line(w) for w in collectives} == {made_line}
    placed = [i for i in seen.items if isinstance(i, e.Placed)]
    assert [(p.name, p.spec, p.placement) for p in placed] == [("rows", "float32[4, 4]", "Shard(0) on [0, 1]")]


def test_a_collective_lasts_until_the_other_worker_has_come():
    with cluster(2) as made:
        slow(made, "exp", 0.05, worker=1)
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with recorded(made) as seen, gt.signal("rows"):
            gt.ones(4, 4).exp().sum(axis=0).numpy()
    first = next(w for w in seen.work if isinstance(w, Collective) and w.worker == "w0")
    assert first.seconds == pytest.approx(0.05, abs=1e-4), first


def test_frees_and_ends_of_runs_are_told():
    with cluster(1) as made, recorded(made) as seen:
        (gt.ones(2) + 1).numpy()
    assert sum(isinstance(i, Free) for i in seen.items) == 2
    ends = [i.serial for i in seen.items if isinstance(i, RunEnd)]
    sent = [i.serial for i in seen.items if isinstance(i, e.Sent)]
    assert ends == sent and len(sent) == len([i for i in seen.items if isinstance(i, e.Received)])


def test_an_op_that_fails_is_among_the_broken():
    with cluster(1) as made:
        engine = made.workers[0].engine
        kernel = engine.kernel
        engine.kernel = lambda kind: (lambda *a: 1 / 0) if kind.row.name == "exp" else kernel(kind)  # type: ignore[method-assign]
        with recorded(made) as seen, pytest.raises(gt.errors.RemoteError):
            gt.ones(2).exp().numpy()
        assert 2 in next(i.broken for i in seen.items if isinstance(i, RunEnd) and i.broken)


def test_nothing_is_recorded_unless_someone_listens_and_of_others_nothing():
    with cluster(1) as made:
        gt.ones(2).numpy()
        assert made.workers[0].recorder is None and here().session.reports is None
        with recorded(made) as seen:
            mine, HERE.scope = HERE.scope, Scope(made.session())
            gt.ones(3).exp().numpy()
            assert here().session.reports is None
            HERE.scope = mine
            gt.ones(2).log().numpy()
        assert [w.name for w in seen.work if not isinstance(w, Move)] == ["full", "log"]
        made.settle()
        assert made.workers[0].recorder is None and here().session.reports is None


class TimedWorker:
    """A worker whose every instruction takes a known time of a known clock, and who is watched at a level."""

    def __init__(self, level: int) -> None:
        self.core, self.clock, self.serial = Worker(make("numpy")), Clock(), 0
        self.core.clock, self.clock.now = self.clock, 100.0
        self.core.executor.turn = Turn(self.clock, lambda: False)
        self.core.handle(Mail(DISPATCHER, e.Listen(level)))
        self.seconds, self.stop = 0.0, lambda ins: None

    def values(self, client: str) -> ClientValues:
        values = self.core._values(client)
        values.kinds[7] = TRACE, None, SimpleNamespace(
            tensor_positions=(), specs=(), compared=(), checked=(lambda ins: (), ()), ends=lambda ins: (), limits=None,
            large=False, dies=(), results=(), title="work", run=self._work, ops={}, ways={}, stats=dict,
        )  # fmt: skip
        return values

    def _work(self, table: dict, ins: tuple) -> None:
        self.clock.advance(self.seconds)
        self.stop(ins)

    def run(self, client: str, code: list[tuple], seconds: float, **more: Any) -> None:
        """A run, each of whose instructions takes so long."""
        self.values(client)
        self.serial, self.seconds = self.serial + 1, seconds
        self.core.run(Run(client, self.serial, (), code, **more))

    def seen(self) -> Recording:
        found, report = Recording(), self.core.recorder and self.core.recorder.report()
        assert report is not None and self.core.recorder is not None and self.core.recorder.report() is None
        found.add(report.events)
        return found


@pytest.mark.parametrize("level", [e.EVERY, e.INSIDE])
def test_a_run_ends_after_its_reads_and_with_its_failures(level: int) -> None:
    worker = TimedWorker(level)

    def fail(ins: tuple) -> None:
        worker.values("a").note_broken(ins[1])

    worker.run("a", [(7, 1, 2), (7, 2, 3)], 0.5)
    worker.clock.advance(8.0)
    worker.stop = fail
    worker.run("a", [(7, 4, 5)], 0.5, gets=(Fetch(1, 4, (0, 2), (), ()),))
    worker.clock.advance(8.0)
    seen = worker.seen()
    told = [i.serial if isinstance(i, RunEnd) else (i.id, i.start, i.seconds) for i in seen.items]
    assert told == [(1, 100.0, 0.5), (2, 100.5, 0.5), 1, (4, 109.0, 0.5), (4, 109.5, 0.0), 2]
    assert [(i.at, i.broken) for i in seen.items if isinstance(i, RunEnd)] == [(101.0, (4,)), (109.5, (4,))]


@pytest.mark.parametrize("waits", [False, True], ids=["preempted", "waits"])
@pytest.mark.parametrize("level", [e.SAMPLED, e.EVERY, e.INSIDE])
def test_time_in_which_a_run_is_preempted_is_not_its_instruction_s(level: int, waits: bool) -> None:
    worker = TimedWorker(level)
    core, wait = worker.core, SimpleNamespace(ready=lambda: True, result=lambda: ())

    def stop(ins: tuple) -> None:
        if ins[1] == 2:
            raise Parked((), wait) if waits else Preempted(ins, lambda: worker.clock.advance(0.25))

    worker.stop = stop
    worker.run("a", [(7, 1, 2), (7, 2, 3), (7, 3, 4)], 0.5)
    assert core.unfinished("a")
    worker.stop = lambda ins: None
    worker.run("b", [(7, 9, 2)], 8.0)
    worker.seconds = 0.5
    core.resume() if waits else core.go_on("a")
    assert not core.unfinished("a")
    found = [(w.client, w.id, w.start, w.seconds) for w in worker.seen().items if isinstance(w, Activity)]
    mine = [("a", 1, 100.0, 0.5)]
    mine += [("a", 2, 100.5, 8.5), ("a", 3, 109.0, 0.5)] if waits else [("a", 2, 108.5, 0.75), ("a", 3, 109.25, 0.5)]
    assert found == [*mine, ("b", 9, 101.0, 8.0)]


@pytest.mark.parametrize("waits", [False, True], ids=["preempted", "waits"])
def test_a_preempted_run_that_is_timed_as_a_whole_has_its_own_time_alone(waits: bool) -> None:
    worker = TimedWorker(e.SAMPLED)
    core, wait = worker.core, SimpleNamespace(ready=lambda: True, result=lambda: ())

    def stop(ins: tuple) -> None:
        raise Parked((), wait) if waits else Preempted(ins, lambda: None)

    watched = worker.values("a").watched
    assert watched is not None
    watched.skip, worker.stop = 1, stop
    worker.run("a", [(7, 1, 2), (7, 2, 3)], 0.5)
    worker.clock.advance(8.0)
    worker.stop = lambda ins: None
    core.resume() if waits else core.go_on("a")
    found = [(w.count, w.start, w.seconds) for w in worker.seen().items if isinstance(w, StretchActivity)]
    assert found == [(2, 100.0, 0.5), (0, 108.5, 0.5)]


def test_a_report_leaves_the_instruction_that_lasts_and_meanings_of_dropped_kinds_are_told() -> None:
    worker, during = TimedWorker(e.EVERY), Recording()
    recorder = worker.core.recorder
    assert recorder is not None

    def report(ins: tuple) -> None:
        if (found := recorder.report()) is not None:
            during.add(found.events)

    worker.stop = report
    worker.run("a", [(7, 1, 2), (7, 2, 3)], 0.5, drops=(7,))
    during.add(recorder.report().events)  # type: ignore[union-attr]
    assert 7 not in worker.core.spaces["a"].kinds
    told = [(i.name, i.id, i.start, i.seconds) for i in during.items if isinstance(i, Activity)]
    assert told == [("work", 1, 100.0, 0.5), ("work", 2, 100.5, 0.5)]


def test_a_report_during_a_pause_leaves_the_rest_of_the_run() -> None:
    worker = TimedWorker(e.EVERY)
    recorder, found = worker.core.recorder, Recording()
    assert recorder is not None

    def stop(ins: tuple) -> None:
        if ins[1] == 2:
            raise Preempted(ins, lambda: worker.clock.advance(0.25))

    worker.stop = stop
    worker.run("a", [(7, 1, 2), (7, 2, 3), (7, 3, 4)], 0.5)
    found.add(recorder.report().events)  # type: ignore[union-attr]
    worker.clock.advance(8.0)
    worker.stop = lambda ins: None
    worker.core.go_on("a")
    found.add(recorder.report().events)  # type: ignore[union-attr]
    told = [(i.id, i.start, i.seconds) for i in found.items if isinstance(i, Activity)]
    assert told == [(1, 100.0, 0.5), (2, 108.5, 0.75), (3, 109.25, 0.5)]


@pytest.mark.parametrize("level", [e.SAMPLED, e.EVERY, e.INSIDE])
def test_a_run_that_ends_by_an_internal_error_lasts_until_then(level: int) -> None:
    worker = TimedWorker(level)

    def fail(*a: Any) -> None:
        raise AssertionError("an internal error")

    worker.core.executor.fail, worker.stop = fail, lambda ins: 1 / (ins[1] - 2)  # type: ignore[method-assign]
    worker.values("a")
    worker.seconds = 0.5
    worker.core.handle(Mail(DISPATCHER, Run("a", 1, (), [(7, 1, 2), (7, 2, 3), (7, 3, 4)])))
    worker.clock.advance(8.0)
    worker.run("a", [(7, 4, 2), (7, 5, 2)], 0.5)
    told = [(i.id, i.start, i.seconds) for i in worker.seen().items if isinstance(i, Activity)]
    broken = [] if level == e.INSIDE else [(2, 100.5, 0.5)]  # there, an instruction is told when it has ended
    assert told == [(1, 100.0, 0.5), *broken, (4, 109.0, 0.5), (5, 109.5, 0.5)]


def test_reports_of_another_thread_have_each_instruction_once_with_its_own_time() -> None:
    """The clock counts, and each instruction reads it: that is between its own start and the next one's."""
    worker, found, read, over = TimedWorker(e.OFF), Recording(), list[tuple[int, int]](), threading.Event()
    clock = worker.core.clock = count(1.0).__next__
    worker.core.handle(Mail(DISPATCHER, e.Listen(e.EVERY)))
    recorder = worker.core.recorder
    assert recorder is not None
    worker.stop = lambda ins: read.append((ins[1], clock()))
    reports: list[e.WorkerReport] = []

    def report() -> None:
        while not over.is_set():
            reports.extend(filter(None, [recorder.report()]))

    thread, interval = threading.Thread(target=report), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for i in takewhile(lambda i: i < 6000 or len(reports) < 30, count(1, 3)):
            worker.run("a", [(7, i, 0), (7, i + 1, 0), (7, i + 2, 0)], 0.0)
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
    for one in [*reports, *filter(None, [recorder.report()])]:
        found.add(one.events)
    told = [(i.id, i.start, i.start + i.seconds) for i in found.items if isinstance(i, Activity)]
    assert [id for id, _, _ in told] == [id for id, _ in read] == list(range(1, len(read) + 1))
    assert [(one, at) for one, (_, at) in zip(told, read) if not one[1] < at < one[2]] == []


def test_entries_that_nobody_reports_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("core", "unreported"):
        monkeypatch.setattr(f"gt.worker.{module}.MAX_UNREPORTED", 8)
    worker = TimedWorker(e.EVERY)
    for i in range(50):
        worker.run("a", [(7, i, 2)], 0.5)
    seen = worker.seen()
    kept = [i.id for i in seen.items if isinstance(i, Activity)]
    assert 2 <= len(kept) <= 4 and kept == list(range(50 - len(kept), 50)) and seen.reader.dropped == 50 - len(kept)


class FirstRun(RunSample):
    """Only the first run is in the sample."""

    def next(self) -> int:
        return 1 << 30


def test_runs_outside_the_sample_are_told_with_their_time_and_divided_as_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.worker.unreported.RunSample", FirstRun)
    with cluster(1) as made:
        slow(made, "exp", 0.02)
        x = gt.ones(2)
        made.settle()
        with recorded(made, e.SAMPLED) as seen:
            for i in range(9):
                (x + float(i)).exp().numpy()
    timed = [w for w in seen.work if isinstance(w, OpActivity)]
    stretches = [w for w in seen.work if isinstance(w, StretchActivity)]
    assert [w.name for w in timed] == ["add", "exp"]
    assert sum(w.seconds for w in timed) == pytest.approx(0.02, abs=1e-4)
    assert sum(w.seconds for w in stretches) == pytest.approx(8 * 0.02, abs=1e-4)
    assert sum(w.count for w in stretches) >= 8 * 2
    found = shares(seen.work, seen.work[0].start, max(w.stop for w in seen.work))
    assert found["elementwise"] == pytest.approx(1.0) and "instructions" not in found


def test_runs_of_one_client_are_told_together_until_a_pause_or_a_timed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunSample, "next", lambda sample: 2)
    worker = TimedWorker(e.SAMPLED)
    for client, skip in (("a", 3), ("b", 1)):
        watched = worker.values(client).watched
        assert watched is not None
        watched.skip = skip
    for client, pause, seconds in (
        ("a", 1.0, 0.02), ("a", 0.001, 0.04), ("a", 0.5, 0.01), ("a", 0.001, 0.02), ("a", 0.001, 0.03), ("b", 0.001, 0.01),
    ):  # fmt: skip
        worker.clock.advance(pause)
        worker.run(client, [(7, 1, 2), (7, 2, 3)], seconds / 2)
    found = [w for w in worker.seen().items if isinstance(w, Activity)]
    assert [(w.client, getattr(w, "count", 0), round(w.start, 3), round(w.seconds, 3)) for w in found] == [
        ("a", 4, 101.0, 0.06), ("a", 2, 101.561, 0.01), ("a", 0, 101.572, 0.01), ("a", 0, 101.582, 0.01),
        ("a", 2, 101.593, 0.03), ("b", 2, 101.624, 0.01),
    ]  # fmt: skip


@pytest.mark.parametrize("lengths", [(2, 300), (2, 2, 2, 300), (5,), (40, 2000)])
def test_every_run_has_the_same_chance_and_timing_takes_a_bounded_share(lengths: tuple[int, ...]) -> None:
    """A sample in any rhythm would meet some of the runs alone, which are of these lengths in turns."""
    sample, met, skip = RunSample(), Counter[int](), 0
    took = cost = 0.0
    for i in range(200_000):
        length, later = lengths[i % len(lengths)], i > 100_000  # not among the first, of which more are timed
        took += length * 1e-6 * later
        sample.add(length * 1e-6, length)
        if skip:
            skip -= 1
        else:
            met[i % len(lengths)] += 1
            cost += (RUN + length * INSTRUCTION) * later
            skip = sample.next()
    assert min(met.values()) > 100 and max(met.values()) < 1.3 * min(met.values()), met
    assert cost == pytest.approx(SHARE * took, rel=0.2)


def test_where_instructions_take_long_all_runs_are_timed() -> None:
    sample = RunSample()
    for _ in range(5000):
        sample.add(20 * 1e-3, 20)
        assert not sample.next()


def test_a_trace_that_breaks_is_told_with_its_reason():
    with cluster(1) as made:
        x = gt.ones(4)
        with recorded(made) as seen:
            for i in range(12):
                y = (((x * 2.0 + 1.0).exp() - 0.5) * x).sum()
                if i == 10:
                    y = y.sqrt().sqrt().sqrt().sqrt().sqrt().sqrt()
                y.item()
    last = [i for i in seen.items if isinstance(i, e.Traced)][-1]
    assert last.found >= 1 and last.hits >= 5 and last.saved > 20


def test_a_client_that_ends_tells_its_last_events():
    seen = list[e.AnyEvent]()
    with cluster(1) as made:
        made.hub.parties["observer"] = lambda mail: seen.extend(getattr(mail.message, "events", ())) or []  # type: ignore
        made.hub.post("observer", Mail("dispatcher", e.Subscribe(VERSION, e.SAMPLED)))
        made.hub.deliver()
        session = here().session
        session.reports.due = float("inf")  # as if the last report were a moment ago
        for _ in range(3):
            gt.ones(2).numpy()
        assert not any(isinstance(event, e.Waited) for event in seen)
        session.close()
        made.hub.deliver()
        assert sum(event.count for event in seen if isinstance(event, e.Waited)) == 3
        HERE.scope = Scope(made.session())


def test_clients_shares_are_of_the_work_that_was_done():
    seen = Recording()
    for client, seconds in (("a", 3.0), ("b", 1.0)):
        seen.items.append(OpActivity("w0", client, "exp", "elementwise", 0.0, seconds))
    assert by_client(seen.work) == {"a": 0.75, "b": 0.25}


def test_a_log_that_cannot_be_written_fast_enough_drops_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody reads stands for a disk that hangs: whoever logs goes on at once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr("gt.watch.log_file.MAX_PENDING", 1000)
    monkeypatch.setattr("gt.watch.log_file.RotatedFile.write", lambda self, lines: (blocked.wait(), None)[1])
    blocked = threading.Event()
    log = LogThread(str(pipe), 1 << 20, lambda line: None)
    dispatcher = Dispatcher(watch=log)
    dispatcher.handle(Mail("w0", Join(VERSION, "", "w0", "numpy", "cpu", "here", 8, "ipc://at")))
    dispatcher.handle(Mail("c", Hello(VERSION, "", "here", 7)))
    full = KindDef(1, "full", ((-3,),), ((2, 2), 8))
    for serial in range(1, 100):
        code = [(1, 100 * serial + i, 1.0) for i in range(100)]
        dispatcher.handle(Mail("c", Batch(serial, (full,) if serial == 1 else (), code)))
    assert log.dropped > 10_000, log.dropped  # it did not wait for the writer, which is blocked
    blocked.set()
    log.close()
    os.close(reader)
    assert not log.thread.is_alive()


def test_a_log_goes_on_behind_an_event_whose_lines_cannot_be_made(tmp_path: Path) -> None:
    told: list[str] = []
    log = LogThread(str(tmp_path / "ops.log"), 1 << 20, told.append)
    log.log.events.lines = Mock(
        side_effect=[[("JOINED", "w0", "WorkerOp", "first")], KeyError, KeyError, [("JOINED", "w0", "WorkerOp", "last")]]
    )
    for _ in range(4):
        log("event", "w0", None)
    log.close()
    written = (tmp_path / "ops.log").read_text()
    assert "first" in written and "last" in written and "DROPPED" in written and "instructions=1" in written, written
    assert len(told) == 1 and "has no lines for event of w0" in told[0] and "KeyError" in told[0], told
    assert log.faults == log.dropped == 2


def trained(log: bool) -> tuple[float, list[dict], int]:
    """A sharded loop's loss, its workers' statistics, and the number of events in a log."""
    told: list[str] = []
    with cluster(2, engine="numpy") as made:
        if log:
            observers = made.dispatcher.observers
            observers.local = lambda event, who, what: told.append(event)
            observers.on = observers.sends = True
            for mail in observers.send_levels():
                made.hub.post("dispatcher", mail)
            made.hub.deliver()
        gt.manual_seed(3)
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0), compile=True))
        with gt.signal("rows"):
            x = gt.randn(8, 4)
        w = gt.randn(4, 4, requires_grad=True)
        for _ in range(30):
            with gt.signal("rows"):
                loss = ((x @ w) ** 2).mean()
            loss.backward()
            w = (w - 0.1 * w.grad).detach().requires_grad_()
        value = loss.item()
        counted = [{k: v for k, v in s.items() if k != "bytes"} for s in gt.debug.get_worker_stats().values()]
    return value, counted, len(told)


@pytest.mark.filterwarnings("ignore:compile.*numpy engine compiles nothing")
def test_the_log_changes_neither_replay_nor_sharded_programs():
    plain, logged = trained(False), trained(True)
    assert plain[:2] == logged[:2] and plain[2] == 0 < logged[2]
    assert plain[1][0]["traces"].get("sharded_calls", 0) > 5, plain[1][0]["traces"]


def test_lines_are_looked_up_before_their_places_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session keeps the lines of its last RING results; a report may come after many more."""
    monkeypatch.setenv("GT_TRACE", "0")
    with cluster(1) as made, recorded(made) as seen:
        session = here().session
        session.reports.due = float("inf")  # as if the last report were a moment ago
        x = first = gt.ones(2)
        for _ in range(RING + LOOK):
            x = x + 1
        x.exp().numpy()
    lines = {seen.reader.lines[client, id] for client, id in seen.reader.lines if id != first.handle.id}
    told = [id for _, id in seen.reader.lines]
    assert told == list(range(told[0], told[0] + len(told))) and len(told) > RING + LOOK
    assert len(lines) == 2 and all(line.startswith("test_watch.py:") for line in lines)
