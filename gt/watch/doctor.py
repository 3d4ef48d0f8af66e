"""`gt doctor`: the slow lines of a program, from a log, a capture or a block of a script."""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gt.errors import GTError
from gt.transport import events as e
from gt.watch.events import Collective, Recording
from gt.watch.host import report as host_report
from gt.watch.log_reader import read
from gt.watch.network import report as network_report
from gt.watch.shares import shares
from gt.watch.stats import amount
from gt.watch.timeline import merged

SUMMARY = "find the slow lines of a program, from its log, or shortages of this machine"
REPEATED = 3  # least count of an event that is reported as repeated
LEAST_SHARE = 0.05  # least share of a run's time that is reported
LEAST_UPLOAD = 4096  # least bytes of an array whose repeated uploads are reported


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost time: its check, its share of the run (where known), the user's line, a description and advice."""

    sort: str
    share: float
    line: str
    text: str
    advice: str

    def __str__(self) -> str:
        where = f"{self.line}: " if self.line else ""
        return f"{where}{self.text}\n    {self.advice}"


def diagnose(recording: Recording) -> list[Finding]:
    """The findings of all checks, the largest share first."""
    start, stop = span(recording)
    found = [*reads(recording, stop - start), *traces(recording), *uploads(recording), *gathers(recording, stop - start),
             *idle(recording, start, stop), *compilations(recording, stop - start), *stalls(recording)]  # fmt: skip
    return sorted(found, key=lambda f: -f.share)


def span(recording: Recording) -> tuple[float, float]:
    """The times of the first activity's start and the last one's end."""
    begins = [w.start for w in recording.work] + [i.at for i in recording.items if isinstance(i, e.Waited)]
    ends = [w.stop for w in recording.work] + [i.at + i.seconds for i in recording.items if isinstance(i, e.Waited)]
    return min(begins, default=0.0), max(ends, default=0.0)


def reads(recording: Recording, total: float) -> Iterator[Finding]:
    """Reads that drain the queue: the client waits until all earlier instructions are done and sends no new ones meanwhile."""
    waits: defaultdict[str, list[e.Waited]] = defaultdict(list)
    for item in recording.items:
        if isinstance(item, e.Waited):
            waits[item.line].append(item)
    for line, there in waits.items():
        seconds = sum(w.seconds for w in there)
        share = seconds / total if total else 0.0
        if len(there) >= REPEATED and share >= LEAST_SHARE:
            text = f"{len(there)} reads drained the queue: {seconds:.3f} s of waiting, {share:.0%} of the run"
            yield Finding("reads", share, line, text, "read less often, such as every 100 steps, or keep the value as a tensor")


def traces(recording: Recording) -> Iterator[Finding]:
    last: dict[str, e.Traced] = {i.client: i for i in recording.items if isinstance(i, e.Traced)}
    for traced in last.values():
        for why, times, line in traced.misses:
            if times >= REPEATED:
                tried = traced.hits + sum(n for _, n, _ in traced.misses)
                text = f"a trace broke {times} times: {why} ({traced.hits} of {tried} attempts were replayed)"
                advice = "keep steps alike: the same ops on the same shapes, and reads at their end"
                yield Finding("traces", times / tried if tried else 0.0, line, text, advice)


def uploads(recording: Recording) -> Iterator[Finding]:
    same: defaultdict[tuple[str, str, str], list[e.Loaded]] = defaultdict(list)
    for item in recording.items:
        if isinstance(item, e.Loaded) and item.nbytes >= LEAST_UPLOAD:
            same[item.client, item.digest, item.line].append(item)
    start, stop = span(recording)
    for (_, _, line), loads in same.items():
        if len(loads) >= REPEATED:
            seconds = sum(load.seconds for load in loads)
            text = f"the same array of {amount(loads[0].nbytes)} was sent {len(loads)} times"
            share = seconds / (stop - start) if stop > start else 0.0
            yield Finding("uploads", share, line, text, "make a tensor of it once, before the loop")


def gathers(recording: Recording, total: float) -> Iterator[Finding]:
    """Sharded tensors that were gathered on every worker for an op that has a rule by which they could have stayed sharded."""
    by_line: defaultdict[tuple[str, str], list[Collective]] = defaultdict(list)
    for work in recording.work:
        if isinstance(work, Collective) and work.rule:
            by_line[recording.line(work), work.rule].append(work)
    for (line, rule), there in by_line.items():
        workers = len({w.worker for w in there}) or 1
        times, seconds = len(there) // workers, sum(w.seconds for w in there) / workers
        if times >= REPEATED:
            nbytes = sum(w.nbytes for w in there)
            text = f"{times} times a tensor was gathered ({amount(nbytes)} in all, {seconds:.3f} s on each worker)"
            yield Finding("gathers", seconds / total if total else 0.0, line, text, f"{rule} (docs/sharding.md)")


def idle(recording: Recording, start: float, stop: float) -> Iterator[Finding]:
    for worker in recording.workers:
        found = shares([w for w in recording.work if w.worker == worker], start, stop)
        if found["idle"] >= 0.5 and stop > start:
            text = f"worker {worker} was idle for {found['idle']:.0%} of the run"
            advice = (
                "send it more instructions at once (larger batches, fewer reads), or shard work over it with a signal's `shard`"
            )
            yield Finding("idle", found["idle"], "", text, advice)


def compilations(recording: Recording, total: float) -> Iterator[Finding]:
    by_client: defaultdict[str, list[e.Compiled]] = defaultdict(list)
    for item in recording.items:
        if isinstance(item, e.Compiled):
            by_client[item.client].append(item)
    for there in by_client.values():
        seconds = sum(c.seconds for c in there)
        given_up = [c.text for c in there if not c.seconds]
        [(line, _)] = Counter(c.line for c in there).most_common(1)
        if len(there) >= REPEATED:
            text = f"{len(there)} programs were compiled in {seconds:.1f} s" + (
                f"; {len(given_up)} were given up" if given_up else ""
            )
            advice = "shapes or ops that differ from step to step make new programs: pad the shapes, or keep the steps alike"
            yield Finding("compilations", min(1.0, seconds / total) if total else 0.0, line, text, advice)


def stalls(recording: Recording) -> Iterator[Finding]:
    for item in recording.items:
        if isinstance(item, e.Stalled):
            line = recording.reader.lines.get((item.client, item.id), "")
            yield Finding(
                "stalls",
                1.0,
                line,
                item.text,
                "look at the workers that did not join the collective: `gt top` shows the op of each",
            )


def text(recording: Recording) -> str:
    """The report as text."""
    start, stop = span(recording)
    busy = sum(b - a for w in recording.workers for a, b in merged((x.start, x.stop) for x in recording.work if x.worker == w))
    share = busy / ((stop - start) * len(recording.workers)) if stop > start else 0.0
    head = (
        f"{stop - start:.3f} s on {len(recording.workers)} workers, which were busy for {share:.0%} of it (waits in "
        f"collectives included): {len(recording.work)} instructions, program calls, collectives and transfers"
    )
    found = diagnose(recording)
    lost = (
        f"\n{recording.dropped} messages were dropped because they came too fast, and are missing here."
        if recording.dropped
        else ""
    )
    lines = [head + lost, *(f"- {finding}" for finding in found)] if found else [head + lost, "Nothing stands out."]
    if recording.lacks:
        lines.append(f"This log has no {recording.lacks}: `gt trace` captures them.")
    return "\n".join(lines)


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("log", nargs="?", help="an instruction log, or a capture of `gt trace`")
    p.add_argument(
        "--host",
        action="store_true",
        help="list the devices, engines and libraries of this machine, and which features lack one",
    )
    p.add_argument(
        "--network", nargs="?", const="", metavar="POOL",
        help="measure the bandwidth between the workers of a pool (name or host:port); its dispatcher keeps the figures",
    )  # fmt: skip
    p.set_defaults(run=run)
    return p


def add_parser(commands: Any) -> None:
    arguments(commands.add_parser("doctor", help=SUMMARY, description=SUMMARY))


def run(args: argparse.Namespace) -> int:
    if args.host:
        print(host_report())
    if args.network is not None:
        print(network_report(args.network))
    if args.log:
        print(text(read(args.log)))
    if not args.host and not args.log and args.network is None:
        raise GTError("gt doctor expects a log or a capture, --host or --network")
    return 0
