"""Shares of a worker's time in an interval: by group of ops, and idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gt.watch.events import Activity, Collective, Free, Move, ProgramCall, StretchActivity, clipped
from gt.watch.timeline import Interval, merged

IDLE, TRANSFER, COLLECTIVE = "idle", "transfer", "collective"  # reserved colours


def seconds_by_group(work: Iterable[Activity]) -> dict[str, float]:
    """Seconds of one worker by group of ops. A program's time is divided among its ops by their estimated shares, the time of a
    stretch among the groups of its client's instructions that were timed one by one."""
    found: defaultdict[str, float] = defaultdict(float)
    stretches: defaultdict[str, float] = defaultdict(float)  # by client
    timed: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for w in work:
        match w:
            case Free():
                continue
            case StretchActivity():
                stretches[w.client] += w.seconds
            case ProgramCall(ops=ops) if ops:
                total = sum(share for _, _, share, _ in ops) or 1.0
                for _, group, share, _ in ops:
                    timed[w.client][group] += w.seconds * share / total
            case Move() | Collective():
                found[w.group] += w.seconds
            case _:
                timed[w.client][w.group] += w.seconds
    for client in {*timed, *stretches}:
        total = sum(timed[client].values())
        for group, seconds in timed[client].items():
            found[group] += seconds + (stretches[client] * seconds / total if total else 0.0)
        if stretches[client] and not total:
            found["instructions"] += stretches[client]
    return dict(found)


def shares(work: Iterable[Activity], start: float, stop: float) -> dict[str, float]:
    """Shares of the time from `start` to `stop` of one worker: groups of ops, and the rest as `idle`. While a collective waits,
    its worker may execute other clients' instructions: that time counts for those instructions."""
    window = max(stop - start, 1e-9)
    inside = [clipped(w, start, stop) for w in work if w.start < stop and w.stop > start]
    computed = merged((w.start, w.stop) for w in inside if not isinstance(w, Collective))
    waits = merged((w.start, w.stop) for w in inside if isinstance(w, Collective))
    waited = length(merged([*computed, *waits])) - length(computed)
    found = seconds_by_group(w for w in inside if not isinstance(w, Collective))
    scale = length(computed) / sum(found.values()) if found and sum(found.values()) else 1.0  # overlaps of inexact clocks
    result = {group: s * scale / window for group, s in found.items()}
    if waits:
        result[COLLECTIVE] = result.get(COLLECTIVE, 0.0) + waited / window
    result[IDLE] = max(0.0, 1.0 - (length(computed) + waited) / window)
    return result


def length(intervals: Iterable[Interval]) -> float:
    return sum(stop - start for start, stop in intervals)


def by_client(work: Iterable[Activity]) -> dict[str, float]:
    """Each client's share of the executed work."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for w in work:
        if not isinstance(w, (Free, Collective)):
            seconds[w.client] += w.seconds
    total = sum(seconds.values()) or 1.0
    return {client: s / total for client, s in seconds.items()}
