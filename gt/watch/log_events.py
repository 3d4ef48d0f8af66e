"""Lines of the instruction log that are no instructions: waits and uploads of clients, their traces, compilations, workers that
joined, and the script's lines of gathered tensors. They are written and read here; `ago` is how many seconds before its line an
event began, as a report is later than its events."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import NamedTuple

from gt.transport.events import Compiled, Event, Joined, Lines, Loaded, Traced, Waited
from gt.watch.events import Recording

MAX_GATHERED = 1 << 12  # most gathered tensors whose lines are awaited
FORMS = {
    "WAITED": r"seconds=(\d+\.\d+) ago=(-?\d+\.\d+) bytes=(\d+) count=(\d+) line=(.*)",
    "LOADED": r"seconds=(\d+\.\d+) ago=(-?\d+\.\d+) bytes=(\d+) digest=(\S*) line=(.*)",
    "TRACED": r"found=(\d+) hits=(\d+) saved=(\d+)",
    "BROKEN": r"times=(\d+) why=(.*) line=(.*)",
    "COMPILED": r"client=(\S*) seconds=(\d+\.\d+) ago=(-?\d+\.\d+) line=(.*?) text=(.*)",
    "JOINED": r"index=(\d+) about=(.*)",
    "LINE": r"result=(-?\d+) line=(.*)",
}
READABLE = {event: re.compile(form) for event, form in FORMS.items()}


class EventLine(NamedTuple):
    """The columns of a line."""

    event: str
    who: str
    sort: str
    details: str


class EventWriter:
    """The lines of events. Of a tracer's state only its changes have lines, of the script's lines only those of gathers."""

    def __init__(self) -> None:
        self.traced: dict[str, Traced] = {}  # by client
        self.gathered: dict[tuple[str, int], None] = {}  # client and id of results whose line is awaited

    def gather(self, client: str, id: int) -> None:
        """A tensor was gathered that a rule would have kept sharded."""
        self.gathered[client, id] = None
        if len(self.gathered) > MAX_GATHERED:
            del self.gathered[next(iter(self.gathered))]

    def forget(self, client: str) -> None:
        self.traced.pop(client, None)
        self.gathered = {key: None for key in self.gathered if key[0] != client}

    def lines(self, now: float, event: Event) -> Iterator[EventLine]:
        match event:
            case Waited(client, at, seconds, line, nbytes, count):
                details = f"seconds={seconds:.6f} ago={now - at:.6f} bytes={nbytes} count={count} line={line}"
                yield EventLine("WAITED", client, "ReadOp", details)
            case Loaded(client, at, seconds, line, nbytes, digest):
                details = f"seconds={seconds:.6f} ago={now - at:.6f} bytes={nbytes} digest={digest} line={line}"
                yield EventLine("LOADED", client, "LoadOp", details)
            case Traced():
                yield from self._traced(event)
            case Compiled(client, at, seconds, text, worker, line):
                shown = text if text.isprintable() else ascii(text)
                details = f"client={client} seconds={seconds:.6f} ago={now - at:.6f} line={line} text={shown}"
                yield EventLine("COMPILED", worker, "CompileOp", details)
            case Joined(name, _, index, about) if index >= 0:
                yield EventLine("JOINED", name, "WorkerOp", f"index={index} about={about}")
            case Lines(client, ids, lines, table) if any(key[0] == client for key in self.gathered):
                for id, n in zip(array("q", ids), array("H", lines)):
                    if (client, id) in self.gathered and n < len(table):
                        del self.gathered[client, id]
                        yield EventLine("LINE", client, "WorkerOp", f"result={id} line={table[n]}")

    def _traced(self, traced: Traced) -> Iterator[EventLine]:
        client, before = traced.client, self.traced.get(traced.client)
        self.traced[client] = traced
        yield EventLine("TRACED", client, "TraceOp", f"found={traced.found} hits={traced.hits} saved={traced.saved}")
        known = {why: n for why, n, _ in before.misses} if before is not None else {}
        for why, n, line in traced.misses:
            if n != known.get(why):
                yield EventLine("BROKEN", client, "TraceOp", f"times={n} why={why} line={line}")


class EventReader:
    """Adds the events of such lines to a recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording, self.found = recording, False
        self.traced: dict[str, Traced] = {}  # the last state by client, without its misses
        self.misses: dict[str, dict[str, tuple[str, int, str]]] = {}  # by client and reason

    def line(self, at: float, event: str, who: str, details: str) -> None:
        words = READABLE[event].fullmatch(details) if event in READABLE else None
        if words is None:
            return
        self.found = True
        match event, words.groups():
            case "WAITED", (seconds, ago, nbytes, count, line):
                self._add(Waited(who, at - float(ago), float(seconds), line, int(nbytes), int(count)))
            case "LOADED", (seconds, ago, nbytes, digest, line):
                self._add(Loaded(who, at - float(ago), float(seconds), line, int(nbytes), digest))
            case "COMPILED", (client, seconds, ago, line, text):
                self._add(Compiled(client, at - float(ago), float(seconds), text, who, line))
            case "JOINED", (index, about):
                self._add(Joined(who, at, int(index), about))
            case "TRACED", (found, hits, saved):
                self.traced[who] = Traced(who, at, int(found), int(hits), int(saved))
            case "BROKEN", (times, why, line):
                self.misses.setdefault(who, {})[why] = why, int(times), line
            case "LINE", (id, line):
                self.recording.reader.lines[who, int(id)] = line

    def _add(self, event: Event) -> None:
        self.recording.items.append(event)

    def end(self) -> None:
        """Add the last state of each client's tracer."""
        for client, traced in self.traced.items():
            misses = tuple(self.misses.get(client, {}).values())
            self._add(Traced(client, traced.at, traced.found, traced.hits, traced.saved, misses))
