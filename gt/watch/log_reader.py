"""Reads an instruction log into the same events as a capture, as far as its lines contain them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from gt.errors import GTError
from gt.transport.events import Received, Sent, Waited
from gt.watch import capture
from gt.watch.events import Activity, Recording, meaning_of, typed
from gt.watch.log_events import EventReader

LACKS = "lines of the script, uploads, traces and compilations"  # as no client and no worker has reported any
LINE = re.compile(r"\[TAPE (\d+\.\d{3})s\] (\w+) +\| (.*?) +\| (\w+) +\| (.*)")


class _Log:
    """The state of reading a log."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.events = EventReader(self.recording)
        self.reads: dict[str, list[Waited]] = {}  # by client, as its instructions show them
        self.sent: dict[str, deque[tuple[float, dict[str, str]]]] = {}  # by worker: time, and the op, result and other words
        self.asked: dict[str, deque[tuple[float, str]]] = {}  # by client: time, and arity of the op
        self.ended: dict[str, float] = {}  # by worker: end of its last instruction
        self.serial: dict[str, int] = {}
        self.batches: dict[str, tuple[float, int]] = {}  # by client: arrival and instruction count of its current batch
        self.runs: dict[str, tuple[str, float, int]] = {}  # by worker: client, time and instruction count of its current run

    def line(self, at: float, event: str, who: str, sort: str, details: str) -> None:
        match event:
            case "RECV":
                if self.batches.get(who, (None,))[0] != at:
                    self._batch(who)
                    self.batches[who] = (at, 0)
                self.batches[who] = (at, self.batches[who][1] + (sort != "FreeOp"))
                if sort != "FreeOp":
                    self.asked.setdefault(who, deque()).append((at, sort))
            case "WORKER_SEND":
                named, _, rule = details.partition(" rule=")
                words = {**dict(word.partition("=")[::2] for word in named.split()), "rule": rule}
                self.sent.setdefault(who, deque()).append((at, words))
                client = words.get("result", "").partition(",")[0].rpartition("_")[0]
                before = self.runs.get(who)
                if before is None or before[:2] != (client, at):
                    self._run(who)
                    before = (client, at, 0)
                self.runs[who] = (client, at, before[2] + 1)
            case "WORKER_RECV":
                self._done(at, who)
            case "SEND":
                self._answered(at, who, sort)
            case _:
                self.events.line(at, event, who, details)

    def _batch(self, client: str) -> None:
        if client in self.batches:
            at, n = self.batches.pop(client)
            self.serial[client] = self.serial.get(client, 0) + 1
            self.recording.items.append(Received(client, self.serial[client], at, n))

    def _run(self, worker: str) -> None:
        if worker in self.runs:
            client, at, n = self.runs.pop(worker)
            self.recording.items.append(Sent(client, self.serial.get(client, 0) + 1, worker, at, n))

    def _done(self, at: float, worker: str) -> None:
        if not self.sent.get(worker):
            return
        began, words = self.sent[worker].popleft()
        start = max(began, self.ended.get(worker, 0.0))
        self.ended[worker] = at
        client, _, id = words.get("result", "").partition(",")[0].rpartition("_")
        meaning = meaning_of(words.get("op", ""))
        if words["rule"]:
            id = words.get("for", "")
            meaning = replace(meaning, rule=words["rule"], nbytes=integer(words.get("bytes", "")))
        work = Activity(worker, client, "", "", start, max(0.0, at - start), integer(id))
        self.recording.items.append(typed(meaning, work))

    def _answered(self, at: float, client: str, sort: str) -> None:
        asked = self.asked.get(client, deque())
        found = next((pair for pair in asked if pair[1] == sort), None)
        if found is not None:
            asked.remove(found)
            if sort == "ReadOp":
                self.reads.setdefault(client, []).append(Waited(client, found[0], at - found[0], "", 0))

    def end(self) -> Recording:
        """The events of all lines."""
        for client in list(self.batches):
            self._batch(client)
        for worker in list(self.runs):
            self._run(worker)
        self.events.end()
        told = {item.client for item in self.recording.items if isinstance(item, Waited)}
        self.recording.items += [wait for client, waits in self.reads.items() if client not in told for wait in waits]
        self.recording.lacks = "" if self.events.found else LACKS
        return self.recording


def integer(text: str) -> int:
    """An id or a count; 0 if it is none."""
    return int(text) if text.removeprefix("-").isdecimal() else 0


def read_log(lines: Iterable[str], name: str = "the log") -> Recording:
    """The events of an instruction log's lines. The log has no start of an op: it is taken as the later of its send and the end
    of the worker's previous op."""
    log, seen = _Log(), False
    for text in lines:
        found = LINE.match(text)
        if found:
            seen = True
            at, event, who, sort, details = found.groups()
            log.line(float(at), event, who, sort, details)
    if not seen:
        raise GTError(f"{name} is neither a capture of `gt trace` nor an instruction log: no line of it begins with [TAPE")
    return log.end()


def read(path: str | Path) -> Recording:
    """Read a log or a capture."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(capture.MAGIC))
        if head == capture.MAGIC:
            return capture.read(path)
        with open(path, errors="replace") as text:
            return read_log(text, str(path))
    except OSError as wrong:
        raise GTError(f"cannot read {path}: {wrong.strerror}") from wrong
