"""A recording in the JSON that Perfetto (ui.perfetto.dev) and Chrome (chrome://tracing) read: a track for each client, the
dispatcher and each worker, and flow arrows from a client's batch over the dispatcher to the worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gt.watch.chart import Arrow, Bar, Chart, chart
from gt.watch.events import Recording

SHORT = 1e-6  # shown seconds of an event without a duration


def events(drawn: Chart) -> list[dict[str, Any]]:
    """Trace events: metadata that names the tracks, slices, and flows."""
    found: list[dict[str, Any]] = []
    for lane, name in enumerate(drawn.lanes):
        party, _, label = name.partition(" ")
        pid = {"client": 1, "dispatcher": 2, "worker": 3}[party]
        plural = "dispatcher" if pid == 2 else f"{party}s"
        found.append({"ph": "M", "pid": pid, "tid": lane, "name": "process_name", "args": {"name": plural}})
        found.append({"ph": "M", "pid": pid, "tid": lane, "name": "thread_name", "args": {"name": label or name}})
        found.append({"ph": "M", "pid": pid, "tid": lane, "name": "thread_sort_index", "args": {"sort_index": lane}})
    found += [_slice(bar, drawn) for bar in drawn.bars]
    for number, arrow in enumerate(drawn.arrows, 1):
        found += _flow(arrow, number, drawn)
    return found


def _pid(lane: int, drawn: Chart) -> int:
    return {"client": 1, "dispatcher": 2, "worker": 3}[drawn.lanes[lane].partition(" ")[0]]


def _slice(bar: Bar, drawn: Chart) -> dict[str, Any]:
    args = {"client": bar.client, "line": bar.line, "bytes": bar.nbytes}
    return {
        "ph": "X", "pid": _pid(bar.lane, drawn), "tid": bar.lane, "ts": bar.start * 1e6,
        "dur": max(bar.stop - bar.start, SHORT) * 1e6, "name": bar.name, "cat": bar.group,
        "args": {key: value for key, value in args.items() if value},
    }  # fmt: skip


def _flow(arrow: Arrow, number: int, drawn: Chart) -> list[dict[str, Any]]:
    """The two flow events of an arrow; each is bound to the slice that begins at its time."""
    shared = {"cat": arrow.sort, "name": arrow.name or arrow.sort, "id": number}
    begin = {"ph": "s", "pid": _pid(arrow.source, drawn), "tid": arrow.source, "ts": arrow.at * 1e6}
    end = {"ph": "f", "bp": "e", "pid": _pid(arrow.target, drawn), "tid": arrow.target, "ts": arrow.to * 1e6}
    return [begin | shared, end | shared]


def write(recording: Recording, path: str | Path) -> None:
    data = {"traceEvents": events(chart(recording)), "displayTimeUnit": "ms", "otherData": {"dropped": recording.dropped}}
    Path(path).write_text(json.dumps(data, separators=(",", ":")))
