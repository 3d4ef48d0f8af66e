"""A recording as lanes, bars and arrows, the input of every renderer (Matplotlib, HTML, Perfetto)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from gt.transport.events import Lines, Loaded, Received, Sent, Waited
from gt.watch.events import Activity, Collective, Free, ProgramCall, Recording, RunEnd

COLOURS = {
    "idle": "#e9ecef", "transfer": "#efb118", "collective": "#ff725c", "wait": "#c9b8f0", "batch": "#9498a0",  # reserved
    "matmul": "#4269d0", "elementwise": "#3ca951", "reduce": "#a463f2", "movement": "#6cc5b0", "create": "#97bbf5",
    "update": "#9c6b4e", "conv": "#1f4e9c", "attention": "#7a1fa2", "linalg": "#2f7f7f", "program": "#5a6f9f",
    "instructions": "#8a8f98", "unknown": "#bbbbbb",
}  # fmt: skip
OTHERS = ("#b5651d", "#607d3b", "#4b6584", "#a05195")  # for groups without a colour above


def colour(group: str) -> str:
    return COLOURS.get(group) or OTHERS[sum(map(ord, group)) % len(OTHERS)]


@dataclass(frozen=True, slots=True)
class Bar:
    """One activity on a lane. `group` decides its colour: of a program, the op group with the largest share of its time."""

    lane: int
    start: float
    stop: float
    name: str
    group: str
    client: str = ""
    line: str = ""
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow between two lanes: a batch on its way (`flow`), or a `collective` or `move` between workers."""

    source: int
    at: float
    target: int
    to: float
    sort: str
    name: str = ""


@dataclass(slots=True)
class Chart:
    """Lanes are clients, the dispatcher and workers, in this order. Times are seconds since `began`."""

    lanes: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0

    @property
    def groups(self) -> list[str]:
        return list(dict.fromkeys(bar.group for bar in sorted(self.bars, key=lambda b: b.start)))


def chart(recording: Recording) -> Chart:
    """The lanes, bars and arrows of a recording."""
    return _Builder(recording).chart


class _Builder:
    def __init__(self, recording: Recording) -> None:
        self.recording, self.chart = recording, Chart()
        clients, workers = recording.clients, recording.workers
        self.client = {name: i for i, name in enumerate(clients)}
        self.dispatcher = len(clients)
        self.worker = {name: len(clients) + 1 + i for i, name in enumerate(workers)}
        self.chart.lanes = [*(f"client {c}" for c in clients), "dispatcher", *(f"worker {w}" for w in workers)]
        times = [t for t in map(_time, recording.items) if t]
        self.chart.began = min(times, default=0.0)
        self.sends: dict[tuple[str, int], float] = {}  # time at which a client sent a batch
        self.received: dict[tuple[str, int], float] = {}
        self.sent: dict[tuple[str, str, int], float] = {}
        self.first: dict[tuple[str, str], Activity] = {}  # of the current run
        self.begun: dict[tuple[str, str, int], float] = {}  # time of the first activity of a run
        for item in recording.items:
            self._item(item)
        self._flows()
        self._collectives()
        self.chart.seconds = max((b.stop for b in self.chart.bars), default=0.0)

    def _item(self, item: object) -> None:
        match item:
            case Free():
                pass
            case Activity():
                self.first.setdefault((item.worker, item.client), item)
                self._bar(self.worker[item.worker], item.start, item.stop, item.name, _group(item), item.client,
                          self.recording.line(item), item.nbytes)  # fmt: skip
            case RunEnd(worker, client, serial):
                if first := self.first.pop((worker, client), None):
                    self.begun[worker, client, serial] = first.start
            case Lines(client=client, sent=sent):
                for serial, at in sent:
                    self.sends[client, serial] = at
                    self._bar(self.client[client], at, at, f"batch {serial}", "batch", client)
            case Received(client, serial, at, n):
                self.received[client, serial] = at
                self._bar(self.dispatcher, at, at, f"batch {serial}: {n} instructions", "batch", client)
            case Sent(client, serial, worker, at):
                self.sent[worker, client, serial] = at
            case Waited(client, at, seconds, line, nbytes):
                self._bar(self.client[client], at, at + seconds, "waits for a value", "wait", client, line, nbytes)
            case Loaded(client, at, seconds, line, nbytes):
                self._bar(self.client[client], at, at + seconds, "sends an array", "transfer", client, line, nbytes)

    def _flows(self) -> None:
        """Add the arrows of each batch: from its client to the dispatcher, and from there to the first activity of each run. A
        client reports that it sent a batch after the dispatcher received it, so this waits for all items."""
        for (client, serial), at in self.sends.items():
            if (client, serial) in self.received:
                ends = (self.client[client], at, self.dispatcher, self.received[client, serial])
                self._arrow(*ends, "flow", f"batch {serial}")
        for (worker, client, serial), at in self.sent.items():
            if (worker, client, serial) in self.begun:
                ends = (self.dispatcher, at, self.worker[worker], self.begun[worker, client, serial])
                self._arrow(*ends, "flow", f"batch {serial}")

    def _collectives(self) -> None:
        """Add the arrows of each collective: from each worker to the worker that arrived last."""
        met: defaultdict[tuple, list[Collective]] = defaultdict(list)
        times: defaultdict[tuple, int] = defaultdict(int)
        for item in self.recording.items:
            if isinstance(item, Collective):
                own = (item.worker, item.client, item.id, item.name)
                met[item.client, item.id, item.name, times[own]].append(item)
                times[own] += 1
        for together in met.values():
            last = max(together, key=lambda w: w.start)
            for other in together:
                if other.worker != last.worker:
                    ends = (self.worker[last.worker], last.start, self.worker[other.worker], other.stop)
                    self._arrow(*ends, "collective", other.name)

    def _bar(self, lane: int, start: float, stop: float, name: str, group: str, client: str = "", line: str = "",
             nbytes: int = 0) -> None:  # fmt: skip
        began = self.chart.began
        self.chart.bars.append(Bar(lane, start - began, stop - began, name, group, client, line, nbytes))

    def _arrow(self, source: int, at: float, target: int, to: float, sort: str, name: str) -> None:
        self.chart.arrows.append(Arrow(source, at - self.chart.began, target, max(at, to) - self.chart.began, sort, name))


def _time(item: object) -> float:
    return getattr(item, "start", 0.0) or (getattr(item, "at", 0.0) if not isinstance(item, RunEnd) else 0.0)


def _group(work: Activity) -> str:
    if not isinstance(work, ProgramCall) or not work.ops:
        return work.group
    weight: defaultdict[str, float] = defaultdict(float)
    for _, group, share, _ in work.ops:
        weight[group] += share
    return max(weight, key=lambda g: weight[g])
