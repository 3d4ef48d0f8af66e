"""The current state of a cluster, updated by events, for `gt top`, the dashboard and the metrics. It reads no clock: events
contain their times."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from gt.transport import events as e
from gt.watch.events import (
    Activity,
    Collective,
    Free,
    OpActivity,
    OpInProgram,
    ProgramCall,
    Reader,
    Recording,
    RunEnd,
    StretchActivity,
)
from gt.watch.shares import by_client, seconds_by_group, shares

WINDOW = 3.0  # seconds over which shares are computed
REPORT_DELAY = 0.8  # seconds after which a worker's events have reached observers
MAX_ACTIVITIES = 20_000  # activities that are remembered
MAX_PLACED = 1 << 12  # most names whose placement is remembered
GONE = 64  # departed workers, and clients, that are remembered
NEWEST_WEIGHT = 0.4  # weight of the newest shares in the moving average


@dataclass(slots=True)
class WorkerView:
    name: str
    index: int = -1
    about: str = ""
    shares: dict[str, float] = field(default_factory=dict)  # share of the last seconds by group of ops, smoothed
    state: e.State | None = None
    instructions: int = 0
    seconds: Counter[str] = field(default_factory=Counter)  # by group, since the first event
    gone: str = ""

    @property
    def idle(self) -> float:
        return self.shares.get("idle", 0.0) if self.shares else 1.0


@dataclass(slots=True)
class ClientView:
    label: str
    share: float = 0.0  # its share of the work of the last seconds
    batches: int = 0
    instructions: int = 0
    reads: int = 0
    waited: float = 0.0  # seconds of waiting for values
    uploaded: int = 0  # bytes
    found: int = 0
    hits: int = 0
    saved: int = 0
    misses: tuple[tuple[str, int, str], ...] = ()
    gone: str = ""

    @property
    def hit_rate(self) -> float:
        """Calls of traces as a share of all attempts to replay one."""
        tried = self.hits + sum(n for _, n, _ in self.misses)
        return self.hits / tried if tried else 0.0


class Model:
    """The workers, clients and recent activities of a cluster."""

    def __init__(self) -> None:
        self.reader = Reader()
        self.workers: dict[str, WorkerView] = {}
        self.clients: dict[str, ClientView] = {}
        self.recent: deque[Activity] = deque(maxlen=MAX_ACTIVITIES)
        self.items: deque[object] = deque(maxlen=MAX_ACTIVITIES)  # for a timeline
        self.placed: dict[tuple[str, str], e.Placed] = {}
        self.compiled: deque[e.Compiled] = deque(maxlen=100)
        self.stalls: deque[e.Stalled] = deque(maxlen=100)
        self.compilations, self.compile_seconds = 0, 0.0
        self.dropped = self.collectives = self.calls = 0
        self.latest = 0.0  # time of the last event
        self.first = 0.0

    def worker(self, name: str) -> WorkerView:
        return self.workers.setdefault(name, WorkerView(name))

    def client(self, label: str) -> ClientView:
        return self.clients.setdefault(label, ClientView(label))

    def add(self, watched: e.Watched) -> None:
        self.dropped = max(self.dropped, watched.dropped)
        for item in self.reader.read(watched.events):
            at = getattr(item, "stop", 0.0) or getattr(item, "at", 0.0)
            self.latest = max(self.latest, at)
            self.first = self.first or at
            if not isinstance(item, (e.State, Free, OpInProgram)):
                self.items.append(item)
            if isinstance(item, Activity):
                self._work(item)
            else:
                self._other(item)

    def _work(self, work: Activity) -> None:
        view = self.worker(work.worker)
        match work:
            case Free():
                return
            case StretchActivity(count=count):
                view.instructions += count
            case ProgramCall(ops=ops):
                view.instructions += sum(share > 0 for _, _, share, _ in ops)  # unused ops have no share: they did not run
                self.calls += 1
            case Collective():
                self.collectives += 1
                view.instructions += 1
            case OpActivity():
                view.instructions += 1
        self.recent.append(work)
        for group, seconds in seconds_by_group([work]).items():
            view.seconds[group] += seconds  # type: ignore[assignment]

    def _other(self, item: object) -> None:
        match item:
            case e.Joined(name, _, index, about) if index >= 0:
                view = self.worker(name)
                view.index, view.about, view.gone = index, about, ""
            case e.Joined(name):
                self.client(name).gone = ""
            case e.Departed(name, _, why, index):
                (self.worker(name) if index >= 0 else self.client(name)).gone = why or "left"
                self._forget(name)
            case e.State(worker=name):
                self.worker(name).state = item
            case e.Received(client, _, _, instructions, batches):
                view_ = self.client(client)
                view_.batches += batches
                view_.instructions += instructions
            case e.Waited(client, _, seconds, count=count):
                waits = self.client(client)
                waits.reads, waits.waited = waits.reads + count, waits.waited + seconds
            case e.Loaded(client=client, nbytes=nbytes):
                self.client(client).uploaded += nbytes
            case e.Traced(client, _, found, hits, saved, misses):
                traced = self.client(client)
                traced.found, traced.hits, traced.saved, traced.misses = found, hits, saved, misses
            case e.Placed(client, _, name):
                self.placed[client, name] = item
                if len(self.placed) > MAX_PLACED:
                    del self.placed[next(iter(self.placed))]
            case e.Compiled(seconds=seconds):
                self.compiled.append(item)
                self.compilations, self.compile_seconds = self.compilations + 1, self.compile_seconds + seconds
            case e.Stalled():
                self.stalls.append(item)
            case RunEnd():
                pass

    def _forget(self, name: str) -> None:
        """Forget a departed peer's placements, and all but the last departed peers: reports of those may still arrive."""
        self.placed = {key: placed for key, placed in self.placed.items() if key[0] != name}
        views: tuple[dict[str, WorkerView] | dict[str, ClientView], ...] = (self.workers, self.clients)
        for known in views:
            for old in [label for label, view in known.items() if view.gone][:-GONE]:
                del known[old]

    def refresh(self, now: float, client: str = "") -> None:
        """Compute the shares up to the time `now`, of one client's work alone where `client` is given."""
        stop = now - REPORT_DELAY
        start = max(stop - WINDOW, self.first)
        inside: defaultdict[str, list[Activity]] = defaultdict(list)
        for work in self.recent:
            if work.stop > start and (not client or work.client == client):
                inside[work.worker].append(work)
        for view in self.workers.values():
            fresh = shares(inside[view.name], start, stop)
            before = view.shares or fresh
            groups = {*fresh, *before}
            view.shares = {
                g: s
                for g in groups
                if (s := NEWEST_WEIGHT * fresh.get(g, 0.0) + (1 - NEWEST_WEIGHT) * before.get(g, 0.0)) > 0.001
            }
        used = by_client(w for works in inside.values() for w in works)
        for label, known in self.clients.items():
            known.share = used.get(label, 0.0)

    def connected_workers(self) -> list[WorkerView]:
        return sorted((w for w in self.workers.values() if not w.gone), key=lambda w: w.index)

    def connected_clients(self) -> list[ClientView]:
        return [c for c in self.clients.values() if not c.gone]

    def recording(self, since: float) -> Recording:
        """The items since a time, for a timeline."""
        found = Recording(reader=self.reader)
        for item in self.items:
            at = getattr(item, "stop", 0.0) or getattr(item, "at", 0.0)
            if at >= since:
                found.items.append(item)  # type: ignore[arg-type]
        return found
