"""`torch.profiler`, as far as the times that workers record have its form. `gt trace`, `gt doctor` and `gt.debug.record` show
more: lines of the script, transfers, waits."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from gt import debug, missing_names
from gt.watch.timeline import Span, Timeline

__all__ = ["ProfilerAction", "ProfilerActivity", "profile", "record_function", "schedule", "tensorboard_trace_handler"]

MICRO = 1e6  # PyTorch's times are in microseconds


class ProfilerActivity(Enum):
    """The workers' work is recorded, whichever device they have."""

    CPU = 0
    XPU = 1
    CUDA = 2


class ProfilerAction(Enum):
    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


@dataclass(frozen=True, slots=True)
class EventAverage:
    """All calls of one op, trace or collective on all workers; times in microseconds."""

    key: str
    count: int
    device_time_total: float

    @property
    def cpu_time_total(self) -> float:
        return self.device_time_total

    @property
    def device_time(self) -> float:
        """The mean of a call."""
        return self.device_time_total / self.count


class EventList(list[EventAverage]):
    def table(self, sort_by: str | None = None, row_limit: int = 100, **settings: Any) -> str:
        """The ops that took longest, or were called most often (`sort_by="count"`), as text."""
        rows = sorted(self, key=lambda e: -(e.count if sort_by == "count" else e.device_time_total))[:row_limit]
        wide = max((len(e.key) for e in rows), default=4)
        head = f"{'name':{wide}}  {'calls':>8}  {'total ms':>12}  {'mean us':>12}"
        lines = [f"{e.key:{wide}}  {e.count:8}  {e.device_time_total / 1000:12.3f}  {e.device_time:12.3f}" for e in rows]
        return "\n".join([head, *lines])


class profile:  # noqa: N801  PyTorch's spelling
    """Records the workers' work for this script within a `with`; at its end all of it is done. With a `schedule`, the steps are
    recorded whose action that is, and `on_trace_ready` is called after each cycle; without one, at the end.

    >>> with gt.profiler.profile() as prof:
    ...     y = gt.ones(2, 2) @ gt.ones(2, 2)
    >>> [(event.key, event.count) for event in prof.key_averages()]
    [('full', 2), ('matmul', 1)]
    """

    def __init__(
        self, *, activities: Any = None, schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.schedule, self.on_trace_ready = schedule, on_trace_ready
        self.step_num = 0
        self.timeline = Timeline()
        self.recording: AbstractContextManager[Timeline] | None = None

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.stop()

    def start(self) -> None:
        self._act(self._action(self.step_num))

    def stop(self) -> None:
        if self._end() and self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def step(self) -> None:
        """The next step of the schedule begins."""
        ended = self._action(self.step_num) is ProfilerAction.RECORD_AND_SAVE
        self.step_num += 1
        if ended and self._end() and self.on_trace_ready is not None:
            self.on_trace_ready(self)
        self._act(self._action(self.step_num))

    def _action(self, step: int) -> ProfilerAction:
        return self.schedule(step) if self.schedule is not None else ProfilerAction.RECORD

    def _act(self, action: ProfilerAction) -> None:
        if action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE) and self.recording is None:
            self.recording = debug.record()
            self.timeline = self.recording.__enter__()

    def _end(self) -> bool:
        """End the recording. Returns whether there was one."""
        recording, self.recording = self.recording, None
        if recording is not None:
            recording.__exit__(None, None, None)
        return recording is not None

    def events(self) -> list[Span]:
        return self.timeline.spans

    def key_averages(self, *args: Any, **settings: Any) -> EventList:
        """The times by op, trace and collective."""
        by_name: dict[str, list[float]] = defaultdict(list)
        for span in self.timeline.spans:
            by_name[span.name].append(span.stop - span.start)
        return EventList(EventAverage(name, len(times), sum(times) * MICRO) for name, times in by_name.items())

    def export_chrome_trace(self, path: str | Path) -> None:
        """Write a file for chrome://tracing or ui.perfetto.dev: a row for each worker."""
        events = [
            {"ph": "X", "pid": 0, "tid": s.worker, "name": s.name, "cat": s.signal or "op", "ts": s.start * MICRO,
             "dur": (s.stop - s.start) * MICRO}
            for s in self.timeline.spans
        ]  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Callable[[int], ProfilerAction]:
    """The action for each step: `wait` without recording, `warmup` as well, then `active` recorded ones, and again.

    >>> [gt.profiler.schedule(wait=1, warmup=1, active=2)(step).name for step in range(4)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE']
    """
    cycle = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step < 0 or repeat and step >= repeat * cycle:
            return ProfilerAction.NONE
        at = step % cycle
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if at < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


@contextmanager
def record_function(name: str) -> Iterator[None]:
    """A part of a script by name. It changes nothing: `gt trace` shows the lines of the script at each op."""
    yield


def tensorboard_trace_handler(*args: Any, **settings: Any) -> NoReturn:
    raise NotImplementedError(
        "GT writes no files for TensorBoard's profiler: on_trace_ready=lambda prof: prof.export_chrome_trace('trace.json') "
        "writes one for ui.perfetto.dev"
    )


__getattr__ = missing_names.of(__name__)
