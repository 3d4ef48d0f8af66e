"""A worker's current instruction and stack, read on another thread, so that a stuck worker can be inspected."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from gt.transport.events import State
from gt.worker import nvml
from gt.worker.core import Worker
from gt.worker.executor import InstructionExecutor
from gt.worker.programs.compile import Ready

INTERVAL = 0.45  # seconds between two states: each report of a sample, two a second, has one
LONG = 1.0  # seconds in one instruction after which the stack is reported, too
EXECUTE = InstructionExecutor.execute.__code__


def gpu_meter(device: str) -> Callable[[], float]:
    """The utilization in the last second of a GPU, given as `cuda:0`, with or without its name; negative if NVML cannot tell
    it."""
    known = nvml.meter(_uuid(device.partition(" ")[0])) if device.startswith("cuda") else None
    return known or (lambda: -1.0)


def _uuid(device: str) -> str:
    """The UUID of a GPU by PyTorch's count, which CUDA_VISIBLE_DEVICES changes and NVML's does not follow."""
    import torch

    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


class StateReader:
    """Reads a worker's state for a report. `times()` returns its seconds busy and idle and its queue."""

    def __init__(self, core: Worker, clock: Callable[[], float], times: Callable[[], tuple[float, float, int]]) -> None:
        self.core, self.clock, self.times = core, clock, times
        self.gpu = gpu_meter(core.engine.device)
        self.thread = threading.main_thread().ident
        self.at: Any = None  # the instruction seen last, and the time it was first seen
        self.since = self.last = 0.0  # and the time of the last state

    def now_and_then(self) -> tuple[State, ...]:
        """The state, unless the last was a moment ago."""
        now = self.clock()
        if 0 <= now - self.last < INTERVAL:
            return ()
        self.last = now
        return (self(),)

    def __call__(self) -> State:
        now = self.clock()
        frame = sys._current_frames().get(self.thread or 0)
        instruction, text, client = self._current(frame)
        if instruction is None or instruction is not self.at:
            self.at, self.since = instruction, now
        lasted = now - self.since if instruction is not None else 0.0
        stack = "".join(traceback.format_stack(frame)[-12:])[-4000:] if lasted > LONG else ""
        busy, idle, queue = self.times()
        used, total = self.core.engine.memory()
        tensor_count = sum(len(space.table) for space in list(self.core.spaces.values()))
        return State(now, busy, idle, queue, used, total, tensor_count, self.gpu(), text, lasted, stack, "", client)

    def _current(self, frame: FrameType | None) -> tuple[Any, str, str]:
        """The current instruction, its name, and its client."""
        parked = self.core.parked
        if parked is not None:
            return parked, f"{parked.stopped.wait.kind.row.name} (waits for others)", parked.run.client
        while frame is not None and frame.f_code is not EXECUTE:
            frame = frame.f_back
        if frame is None or "ins" not in frame.f_locals:
            return None, "", ""
        instruction, kinds = frame.f_locals["ins"], frame.f_locals["kinds"]
        known = kinds.get(instruction[0])
        ready = known[2] if known is not None else None
        client = frame.f_locals["values"].client
        name = ready.kind.row.name if isinstance(ready, Ready) else ready.title if ready is not None else ""
        return instruction, name, client
