"""The instruction log's file: lines in the order of their times, rotated by size, written by a thread of its own. A disk that
is full or slow costs lines, which are counted, and never holds up the dispatcher."""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any, TextIO

from gt.transport.debug_output import STANDARD_ERROR, StandardError
from gt.watch.log import InstructionLog, Line, of_client, text

HOLD = 0.2  # seconds that a line waits for earlier ones, as workers report what they did a moment later
PENDING = 1 << 18  # instructions that wait to be written
KEPT = 4  # older files
LONG = 2.0  # seconds for the last lines to be written, at the end


def _opened(path: str) -> TextIO:
    """It tells what all users of a server do, so a new one is for none but the server's user to read."""
    return open(path, "a", buffering=1 << 16, opener=lambda path, flags: os.open(path, flags, 0o600))


class RotatedFile:
    """Appends to a file; past its size that becomes `PATH.1`, the one before `PATH.2`, and so on."""

    def __init__(self, path: str, size: int) -> None:
        self.path, self.size = path, size
        self.file = _opened(path)

    def write(self, lines: str) -> None:
        if self.file.tell() + len(lines) > self.size and self.file.tell():
            self.file.close()
            for n in reversed(range(1, KEPT)):
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
    """Lines in the order of their times. Each is held for a while, as an earlier one may come later."""

    def __init__(self, out: RotatedFile | StandardError, start: float) -> None:
        self.out, self.start = out, start
        self.held: list[tuple[float, int, str]] = []
        self.numbers = count()

    def add(self, line: Line) -> None:
        heapq.heappush(self.held, (line[0], next(self.numbers), line[1]))

    def write(self, until: float) -> None:
        """Write what happened before this time."""
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
    """What the dispatcher saw, as it can be kept for a while, and for how many instructions it counts."""
    match event:
        case "batch":
            client, batch = what
            return (batch.serial, of_client(client, batch), [id for _, id, _ in batch.gets]), 1 + len(batch.code)
        case "run":
            client, run = what
            return (client.label, run), 1 + len(run.code)
        case "spans":
            client, spans = what
            return (client.label, spans), 1
    return what, 1


class LogThread:
    """The log as the dispatcher sees it: a function that only queues. `tell` is told, once, why the log ends before the
    dispatcher does."""

    def __init__(self, out: str | StandardError, size: int, tell: Callable[[str], None]) -> None:
        self.name = out if isinstance(out, str) else "on standard error"
        self.tell, self.log = tell, InstructionLog()
        self.ordered = OrderedLines(RotatedFile(out, size) if isinstance(out, str) else out, time.time())
        self.queue: deque[tuple[float, str, str, Any, int]] = deque()
        self.pending = self.written = self.dropped = self.told = 0
        self.ended, self.wake = False, threading.Event()
        self.thread = threading.Thread(target=self._run, name="gt-log", daemon=True)
        self.thread.start()

    def __call__(self, event: str, who: str, what: Any) -> None:
        if self.ended:
            return
        what, size = prepared(event, what)
        if self.pending - self.written > PENDING and event in ("batch", "run"):
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
        except Exception as failed:  # no observer ends the process that it observes, for whatever reason it fails
            self.ended = True
            self.queue.clear()
            self.tell(f"the instruction log {self.name} ends here: {failed}")
        self.ordered.out.close()

    def _take(self) -> None:
        while self.queue:
            at, event, who, what, size = self.queue.popleft()
            for line in self.log.lines(at, event, who, what):
                self.ordered.add(line)
            self.written += size
            if self.dropped > self.told:
                missing, self.told = self.dropped - self.told, self.dropped
                self.ordered.add((at, text("DROPPED", "dispatcher", "LogOp", f"instructions={missing}")))

    def close(self) -> None:
        """Write what is left."""
        self.ended = True
        self.wake.set()
        self.thread.join(LONG)


def open_log(path: str, size: int, shown: bool, tell: Callable[[str], None]) -> list[LogThread]:
    """The logs that are asked for: in a file, on standard error, or both."""
    logs = [LogThread(path, size, tell)] if path else []
    return logs + ([LogThread(STANDARD_ERROR, size, tell)] if shown else [])
