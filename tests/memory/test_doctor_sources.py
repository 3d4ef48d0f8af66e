"""`gt doctor` finds the same in an instruction log, in a capture and in a block of the script itself, in a program whose faults
are known."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from pytest import MonkeyPatch

import gt
from gt.client.here import here
from gt.client.reports import subscribe, unsubscribe
from gt.testing import cluster
from gt.transport.events import EVERY, Compiled, Joined, Lines, Loaded, Traced, Waited
from gt.watch.capture import CaptureFile
from gt.watch.doctor import Finding, diagnose, text
from gt.watch.events import Recording
from gt.watch.log import text as line_text
from gt.watch.log_events import EventReader, EventWriter
from gt.watch.log_file import LogThread
from gt.watch.log_reader import read
from gt.worker.engine.torch import inductor

from .compiling import arithmetic, loop
from .test_log_times import observe

pytestmark = pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE")
TABLE = np.ones((64, 64), "float32")
UPLOADS, GATHERS, BROKEN = 7, 9, 8
SIZES = (3, 4, 5)  # each size of a step is a program of its own


def uploads() -> None:
    for _ in range(UPLOADS):
        gt.tensor(TABLE)


def gathers(w: gt.Tensor, x: gt.Tensor) -> None:
    for _ in range(GATHERS):
        (w @ x).sum().item()


def broken_traces(x: gt.Tensor) -> None:
    for i in range(10 + 4 * BROKEN):
        y = ((x * 2.0 + 0.5).tanh() @ x.T + 0.5).relu()
        for _ in range(i if i > 10 and i % 4 == 0 else 0):  # another number each time
            y = y.sqrt()
        y.mul(0.5).sum().item()


@dataclass
class Examined:
    """The three reports of one run."""

    log: Recording
    capture: Recording
    block: Recording

    def of(self, source: str) -> dict[str, Finding]:
        return {finding.sort: finding for finding in diagnose(getattr(self, source))}


def line_of(function: object, words: str) -> str:
    """`test_doctor_sources.py:40`: the line of a function with these words."""
    source, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    [at] = [i for i, line in enumerate(source) if words in line]
    return f"{Path(__file__).name}:{first + at}"


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examined]:
    """A program on two of three workers, recorded in three ways."""
    folder = tmp_path_factory.mktemp("recorded")
    with MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("GT_TRACE", "GT_WORKER_BATCH_SIZE"):  # as for the tests, whose mark does not reach a module's fixture
            patch.delenv(name, raising=False)
        made = stack.enter_context(cluster(2, "pytorch"))
        patch.setenv("GT_AUTO_COMPILE", "1")
        patch.setattr(inductor, "build", lambda function, samples: function)  # a compiler that changes nothing
        for worker in made.workers:
            worker.engine.clock = time.perf_counter
        log = LogThread(str(folder / "ops.log"), 1 << 24, lambda line: None)
        observe(made, log)
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0), workers=[0, 1]))
        with gt.signal("rows"):
            x = gt.tensor(np.eye(64, dtype="float32"))
        w = gt.tensor(np.ones((64, 64), "float32"))
        made.settle()
        made.names.append("w2")
        made._add("w2", "numpy")
        made.hub.deliver()
        session = here().session
        with CaptureFile(folder / "run.gt") as capture:
            subscribe(session, EVERY, capture.write)
            with gt.debug.doctor(show=False) as doctor:
                uploads()
                gathers(w, x)
                broken_traces(gt.ones(3, 3))
                for size in SIZES:
                    small = gt.ones(size, size)
                    loop(made, lambda i: arithmetic(small, 0.5), 16)  # noqa: B023
            unsubscribe(session, capture.write)
        session.close()
        log.close()
    yield Examined(read(folder / "ops.log"), read(folder / "run.gt"), doctor.recording)


@pytest.mark.parametrize("source", ["log", "capture", "block"])
def test_all_faults_of_a_program_are_found_at_its_lines(examined: Examined, source: str) -> None:
    found = examined.of(source)
    assert found.keys() >= {"reads", "traces", "uploads", "gathers", "idle", "compilations"}, text(getattr(examined, source))
    assert f"was sent {UPLOADS} times" in found["uploads"].text
    assert found["uploads"].line == line_of(uploads, "gt.tensor(TABLE)")
    assert found["gathers"].text.startswith(f"{GATHERS} times a tensor was gathered")
    assert found["gathers"].line == line_of(gathers, "w @ x") and found["gathers"].advice.startswith(
        "matmul takes its operand 2"
    )
    assert re.fullmatch(rf"{1 + len(SIZES)} programs were compiled in [\d.]+ s", found["compilations"].text)
    assert found["compilations"].line.startswith("compiling.py:")
    assert (
        found["traces"].line == line_of(broken_traces, "y.sqrt()") and f"broke {BROKEN} times: diverged" in found["traces"].text
    )
    idle = [finding.text for finding in diagnose(getattr(examined, source)) if finding.sort == "idle"]
    assert "worker w2 was idle for 100% of the run" in idle


def test_a_log_and_a_capture_of_one_run_have_the_same_counts(examined: Examined) -> None:
    def counts(recording: Recording) -> dict[str, object]:
        items = recording.items
        last = [i for i in items if isinstance(i, Traced)][-1]
        return {
            "reads": sorted(i.line for i in items if isinstance(i, Waited)),
            "uploads": [(i.digest, i.nbytes) for i in items if isinstance(i, Loaded) and i.line == line_of(uploads, "TABLE")],
            "compiled": sorted((i.worker, i.line, i.text, round(i.seconds, 6)) for i in items if isinstance(i, Compiled)),
            "traces": (last.found, last.hits, last.saved, sorted(last.misses)),
        }

    log, capture = counts(examined.log), counts(examined.capture)
    assert {name: log[name] == capture[name] for name in log} == dict.fromkeys(log, True), (log, capture)
    assert examined.log.lacks == "" and "gt trace" not in text(examined.log)


def test_events_are_read_as_they_were_written() -> None:
    events = [
        Waited("c", 1.25, 0.5, "my train.py:7", 4, 3),
        Loaded("c", 1.5, 0.25, "data.py:9", 4096, "4096-00ff"),
        Compiled("c", 2.0, 0.125, "a trace: compiled", "w0", "model.py:3"),
        Joined("w0", 4.0, 0, "numpy on cpu, here"),
    ]
    writer, recording = EventWriter(), Recording()
    reader = EventReader(recording)
    writer.gather("c", 5)
    states = [Traced("c", 4.0, 1, 2, 3, (("diverged", n, "train.py:9"), ("a value was read", 1, ""))) for n in (4, 5)]
    names = Lines("c", np.array([5, 6]).tobytes(), np.array([0, 0], "uint16").tobytes(), ("model.py:12",))
    written = [line for event in (*events, *states, names) for line in writer.lines(4.0, event)]
    assert [line.event for line in written].count("BROKEN") == 3, "one that has not changed is not written again"
    for line in written:
        assert line_text(*line).count("\n") == 0
        reader.line(4.0, line.event, line.who, line.details)
    reader.end()
    assert recording.items == [*events, states[1]] and recording.reader.lines == {("c", 5): "model.py:12"}
    reader.line(4.0, "WAITED", "c", "seconds=x ago=y")
    reader.line(4.0, "NOISE", "c", "anything")
    assert len(recording.items) == len(events) + 1, "a damaged line is left out"
