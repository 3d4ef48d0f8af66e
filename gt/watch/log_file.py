"""The instruction log's file: lines sorted by time, rotated by size, written by a thread of its own. With a full or slow disk
lines are dropped and counted; the dispatcher never waits."""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, TextIO

from gt.transport.debug_output import STANDARD_ERROR, StandardError
from gt.watch.log import InstructionLog, Line, of_client, text

HOLD = 0.2  # seconds that a line waits for lines with earlier times: workers' reports arrive late
MAX_PENDING = 1 << 18  # most instructions that wait to be written
ROTATED_FILES = 4  # rotated files
CLOSE_TIMEOUT = 2.0  # seconds to write the last lines at close


def _opened(path: str) -> TextIO:
    """Open a log file. A new one is readable by the server's user alone: it shows the work of all users."""
    return open(path, "a", buffering=1 << 16, opener=lambda path, flags: os.open(path, flags, 0o600))


class RotatedFile:
    """Appends to a file; a file of more than `size` bytes is renamed to `PATH.1`, `PATH.1` to `PATH.2`, and so on."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        self.file = _opened(path)

    def write(self, lines: str) -> None:
        if self.file.tell() + len(lines) > self.size and self.file.tell():
            self.file.close()
            for n in reversed(range(1, ROTATED_FILES)):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}.{n}", f"{self.path}.{n + 1}")
            os.replace(self.path, f"{self.path}.1")
            self.file = _opened(self.path)
        self.file.write(lines)
        self.file.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.file.close()


class OrderedLines:
    """Writes lines sorted by time. Each line is held for `HOLD` seconds, as a line with an earlier time may arrive after it."""

    def __init__(self, out: RotatedFile | StandardError, start: float) -> None:
        self.out, self.start = out, start
        self.held: list[tuple[float, int, str]] = []
        self.numbers = count()

    def add(self, line: Line) -> None:
        heapq.heappush(self.held, (line[0], next(self.numbers), line[1]))

    def write(self, until: float) -> None:
        """Write the lines with times up to `until`."""
        lines = []
        while self.held and self.held[0][0] <= until:
            at, _, line = heapq.heappop(self.held)
            lines.append(f"[TAPE {max(0.0, at - self.start):.3f}s] {line}\n")
            if len(lines) >= 1000:
                self.out.write("".join(lines))
                lines = []
        if lines:
            self.out.write("".join(lines))


def prepared(event: str, what: Any) -> tuple[Any, int]:
    """A dispatcher's event in a form that can be queued, and the number of instructions it counts as."""
    match event:
        case "batch":
            client, batch = what
            return (batch.serial, of_client(client, batch), [id for _, id, _ in batch.gets]), 1 + len(batch.code)
        case "run":
            client, run = what
            return (client.label, run), 1 + len(run.code)
        case "spans" | "state":
            client, told = what
            return (client.label, told), 1
    return what, 1


class LogThread:
    """The log as the dispatcher's observer: calling it only queues the event. `report` is called once if writing fails, and
    once if an event's lines cannot be made."""

    def __init__(self, out: str | StandardError, size: int, report: Callable[[str], None]) -> None:
        self.name = out if isinstance(out, str) else "on standard error"
        self.report, self.log = report, InstructionLog()
        self.ordered = OrderedLines(RotatedFile(out, size) if isinstance(out, str) else out, time.time())
        self.queue: deque[tuple[float, str, str, Any, int]] = deque()
        self.pending = self.written = self.dropped = self.reported = self.faults = 0
        self.ended, self.wake = False, threading.Event()
        self.thread = threading.Thread(target=self._run, name="gt-log", daemon=True)
        self.thread.start()

    def __call__(self, event: str, who: str, what: Any) -> None:
        if self.ended:
            return
        what, size = prepared(event, what)
        if self.pending - self.written > MAX_PENDING and event in ("batch", "run", "event"):
            self.dropped += size
            return
        self.pending += size
        self.queue.append((time.time(), event, who, what, size))
        self.wake.set()

    def _run(self) -> None:
        try:
            while not self.ended or self.queue:
                self.wake.wait(HOLD if self.ordered.held else 1.0)
                self.wake.clear()
                self._take()
                self.ordered.write(time.time() - HOLD)
            self.ordered.write(float("inf"))
        except Exception as failed:  # of writing: a failing observer must not end the dispatcher
            self.ended = True
            self.queue.clear()
            self.report(f"the instruction log {self.name} ends here: {failed}")
        self.ordered.out.close()

    def _take(self) -> None:
        while self.queue:
            at, event, who, what, size = self.queue.popleft()
            try:
                for line in self.log.lines(at, event, who, what):
                    self.ordered.add(line)
            except Exception:  # a fault of ours: it is told once, its instructions count as dropped, and the log goes on
                if not self.faults:
                    self.report(f"the instruction log {self.name} has no lines for {event} of {who}:\n{traceback.format_exc()}")
                self.faults += 1
                self.dropped += size
            self.written += size
            if self.dropped > self.reported:
                missing, self.reported = self.dropped - self.reported, self.dropped
                self.ordered.add((at, text("DROPPED", "dispatcher", "LogOp", f"instructions={missing}")))

    def close(self) -> None:
        """Write the remaining lines."""
        self.ended = True
        self.wake.set()
        self.thread.join(CLOSE_TIMEOUT)


def open_log(path: str, size: int, shown: bool, report: Callable[[str], None]) -> list[LogThread]:
    """The requested logs: in a file, on standard error, or both."""
    logs = [LogThread(path, size, report)] if path else []
    return logs + ([LogThread(STANDARD_ERROR, size, report)] if shown else [])
