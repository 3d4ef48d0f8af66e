"""Redistribution from one layout to another: its cost, in bytes that workers receive, and its steps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gt.dispatcher.hosts import ONE, Hosts
from gt.dispatcher.steps import Draft, ExchangePart, Slot
from gt.errors import ProtocolError
from gt.ops import TABLE, Kind, infer
from gt.spec import REPLICATE, Box, Layout, Partial, Replicate, Shape, Shard, Spec, split

EXCHANGED = 1 << 18  # pairs of workers in all different exchanges of one plan, which no other client's turn interrupts
KEPT = 1 << 8  # most pieces of layouts, and kinds, that are kept for the next operands
IDEMPOTENT = ("max", "min")  # reductions in which copies of a tensor are valid partial terms of it


def _numel(shape: Shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _common(a: Box, b: Box) -> Box | None:
    """The intersection of two pieces."""
    start = tuple(map(max, a[0], b[0]))
    size = tuple(min(s + d, t + e) - f for s, d, t, e, f in zip(a[0], a[1], b[0], b[1], start))
    return (start, size) if all(d > 0 for d in size) else None


def _inside(inner: Box, outer: Box) -> bool:
    return not _numel(inner[1]) or all(t <= s and s + d <= t + e for s, d, t, e in zip(inner[0], inner[1], outer[0], outer[1]))


def _innermost(layout: Layout, dim: int, axis: int) -> bool:
    """Whether no later dimension of the mesh shards this axis again."""
    return all(p != Shard(axis) for p in layout.placements[dim + 1 :])


def settle(source: Layout, target: Layout) -> tuple[Layout, list[tuple[int, Shard | Replicate]]]:
    """The layout after the necessary reductions of partial dimensions, and these dimensions with the placement of each
    result."""
    current, todo = source, []
    for dim, p in enumerate(source.placements):
        if not isinstance(p, Partial):
            continue
        goal = target.placements[dim] if target.mesh is source.mesh or target.mesh == source.mesh else REPLICATE
        if goal == p:
            continue
        to = goal if isinstance(goal, Shard) and _innermost(source, dim, goal.axis) else REPLICATE
        todo.append((dim, to))
        current = current.but(dim, to)
    return current, todo


def _without_terms(current: Layout, target: Layout) -> Layout:
    """The target with Replicate in place of Partial placements that the current layout does not have."""
    placements = tuple(
        REPLICATE if isinstance(p, Partial) and (target.mesh != current.mesh or current.placements[d] != p) else p
        for d, p in enumerate(target.placements)
    )
    return Layout(target.mesh, placements)


def cost(spec: Spec, source: Layout, target: Layout, hosts: Hosts = ONE) -> int:
    """Bytes received by all workers, with bytes between hosts multiplied by their cost. A reduce-scatter costs as much as an
    all-reduce, as the pieces are usually gathered later."""
    if source is target:
        return 0
    current, todo = settle(source, target)
    total = 0
    for dim, _ in todo:
        total += _reduced(spec, source, dim, hosts)
    goal = _without_terms(current, target)
    if goal is not current:
        total += _moved(spec.shape, current, goal, hosts) * spec.dtype.size
    return total


def _reduced(spec: Spec, source: Layout, dim: int, hosts: Hosts) -> int:
    """The cost of a reduction along one dimension of the mesh: inside each host, and between one worker of each host."""
    held = sum(_numel(size) for _, size in source.boxes(spec.shape)) * spec.dtype.size
    n = source.mesh.shape[dim]
    if not hosts.several:
        return 2 * (n - 1) * held // n
    lines = source.mesh.lines(dim)
    spanned = max(hosts.spanned(source.workers[at] for at in line) for line in lines)
    return int(2 * held * (n - spanned + (spanned - 1) * hosts.crossing) / n)


def _moved(shape: Shape, source: Layout, target: Layout, hosts: Hosts) -> int:
    """The elements that workers lack; elements that none of its host's workers has are multiplied by their cost."""
    has = _boxes(source, shape)
    on_host: dict[str, set[Box]] = {}  # boxes are equal or disjoint
    if hosts.several:
        for worker, box in has.items():
            on_host.setdefault(hosts.host(worker), set()).add(box)
    crossing, total = hosts.crossing, 0
    for worker, want in _boxes(target, shape).items():
        both = _common(want, has[worker]) if worker in has else None
        lacks = _numel(want[1]) - (_numel(both[1]) if both else 0)
        if lacks and on_host:
            near = on_host.get(hosts.host(worker), ())
            crosses = max(0, _numel(want[1]) - sum(_numel(both[1]) for box in near if (both := _common(want, box))))
            lacks = int(lacks - crosses + crosses * crossing)
        total += lacks
    return total


class Redistribution:
    """Moves one operand to another layout. `slots` has the slot of each worker's piece."""

    def __init__(
        self, draft: Draft, spec: Spec, layout: Layout, slot: Slot, tag: Slot, kept: bool = False, hosts: Hosts = ONE,
        rule: tuple = (),
    ) -> None:  # fmt: skip
        self.hosts = hosts
        self.rule = rule  # by which it need not be gathered
        self.kept = kept  # the pieces outlive the op: they are copied, as a view would keep the whole tensor alive
        self.draft, self.spec, self.layout, self.slot, self.tag = draft, spec, layout, slot, tag
        self.slots = dict.fromkeys(layout.workers, slot)

    def to(self, target: Layout) -> dict[int, Slot]:
        if self.layout is not target:
            self._settle(target)
            goal = _without_terms(self.layout, target)
            self._gather(goal)
            self._exchange(goal)
            self._terms(target)
        return self.slots

    def _settle(self, target: Layout) -> None:
        """Reduce the operand in place, under its own id, so that later instructions need not reduce it again."""
        current, todo = settle(self.layout, target)
        for dim, to in todo:
            reduce = self.layout.placements[dim].reduce  # type: ignore[union-attr]
            boxes = self.layout.boxes(self.spec.shape)
            for line in self.layout.mesh.lines(dim):
                group = tuple(self.layout.workers[i] for i in line)
                for rank, at in enumerate(line):
                    mine = Spec(boxes[at][1], self.spec.dtype)
                    settings: dict = {"group": group, "reduce": reduce}
                    if isinstance(to, Shard):
                        settings |= {"axis": to.axis, "sizes": (split(mine.shape[to.axis], len(group), rank)[1],)}
                    self._collective(
                        group[rank], "all_reduce" if to == REPLICATE else "reduce_scatter", mine, self.slot, settings
                    )
            self.layout = self.layout.but(dim, to)
        if todo:
            self.draft.relaid[self.slot] = current

    def _gather(self, goal: Layout) -> None:
        """All-gather along each dimension that changes from Shard to Replicate alone."""
        if goal.mesh != self.layout.mesh:
            return
        for dim in reversed(range(len(goal.placements))):
            now, then = self.layout.placements[dim], goal.placements[dim]
            if not isinstance(now, Shard) or then != REPLICATE or not _innermost(self.layout, dim, now.axis):
                continue
            boxes = self.layout.boxes(self.spec.shape)
            after = self.layout.but(dim, REPLICATE)
            wholes, out = after.boxes(self.spec.shape), self.draft.temporary()
            for line in goal.mesh.lines(dim):
                group = tuple(goal.workers[i] for i in line)
                for worker, at in zip(group, line):
                    settings = {"group": group, "axis": now.axis, "size": wholes[at][1][now.axis], "rule": self.rule}
                    self._collective(worker, "all_gather", Spec(boxes[at][1], self.spec.dtype), out, settings)
            self.slots = dict.fromkeys(goal.workers, out)
            self.layout = after

    def _collective(self, worker: int, name: str, mine: Spec | None, out: Slot | None, settings: dict) -> None:
        row = TABLE[name]
        ins = (int,) if mine is None else (mine, int)
        kind = infer(row, ins, tuple(settings[s] for s in row.statics))
        operands = (self.tag,) if mine is None else (self.slots[worker], self.tag)
        self.draft.step(worker, kind, (out,) if out is not None else (), operands)

    def _exchange(self, goal: Layout) -> None:
        """All other changes in one all-to-all: each worker sends the parts of its piece that peers need and receives those it
        lacks."""
        if goal is self.layout:
            return
        shape = self.spec.shape
        has, want = _boxes(self.layout, shape), _boxes(goal, shape)
        if all(w in has and _inside(want[w], has[w]) for w in want):
            self.slots = {w: self._cut(w, has[w], want[w]) for w in want}
        elif len(has) == 1 and len(want) > 2 and all(box[1] == shape for box in want.values()):
            self._broadcast(goal)
        else:
            self._swap(goal, has, want)
        self.layout = goal

    def _cut(self, worker: int, has: Box, want: Box) -> Slot:
        """Slice a part out of a worker's piece."""
        if has[1] == want[1]:
            return self.slots[worker]
        out = self.draft.temporary()
        if not _numel(want[1]):
            self._empty(worker, want[1], out)
            return out
        starts = _relative(want, has)
        kind = infer(TABLE["slice"], (Spec(has[1], self.spec.dtype), *[int] * len(starts)), (tuple((d, 1) for d in want[1]),))
        operands = (self.slots[worker], *[self.draft.constant(s) for s in starts])
        self.draft.step(worker, kind, (out,), operands)
        if self.kept:
            whole, out = out, self.draft.temporary()
            self.draft.step(worker, infer(TABLE["copy"], (Spec(want[1], self.spec.dtype),), ()), (out,), (whole,))
        return out

    def _broadcast(self, goal: Layout) -> None:
        root = self.layout.workers[0]
        group = (root, *[w for w in goal.workers if w != root])
        settings = {"group": group, "shape": self.spec.shape, "dtype": self.spec.dtype.code}
        out = self.draft.temporary()
        for worker in group:
            takes = worker != root
            self._collective(worker, "broadcast", None if takes else self.spec, out if takes else None,
                       settings if takes else settings | {"shape": None})  # fmt: skip
        self.slots = {w: self.slot if w == root else out for w in goal.workers}

    def _swap(self, goal: Layout, has: dict[int, Box], want: dict[int, Box]) -> None:
        """An all-to-all. Operands of one spec and layout share its kinds, as to find them takes workers times workers."""
        key, known = (self.spec, self.layout, goal), self.draft.exchanges
        if key not in known:
            if (len(known) + 1) * len(has) * len(want) > EXCHANGED:
                raise ProtocolError(
                    f"one op exchanges {len(known) + 1} operands of different shapes or layouts between {len(want)} workers: "
                    "expected fewer; use it on some of them at a time, or give the operands one layout first"
                )
            known[key] = tuple(self._in_exchange(goal, has, want))
        out, slots = self.draft.temporary(), {}
        for part in known[key]:
            worker = part.worker
            if worker in want and not part.found:
                self._empty(worker, want[worker][1], out)
            if worker in want:
                slots[worker] = self._cut(worker, has[worker], want[worker]) if part.whole else out
            if part.kind is not None:
                operands = (self.slots[worker], self.tag) if part.sends else (self.tag,)
                self.draft.step(worker, part.kind, (out,) if part.takes else (), operands)
        self.slots = slots

    def _in_exchange(self, goal: Layout, has: dict[int, Box], want: dict[int, Box]) -> Iterator[ExchangePart]:
        """Each worker's part in an all-to-all."""
        parts = _parts(self.layout, goal, has, want, self.hosts)
        group = tuple(sorted({w for source, to, _ in parts if source != to for w in (source, to)}))
        sent: dict[int, list] = {}
        taken: dict[int, list] = {}
        for source, to, box in parts:
            sent.setdefault(source, []).append((to, box))
            taken.setdefault(to, []).append((source, box))
        for worker in sorted({*group, *want}):
            found = taken.get(worker, [])
            whole = worker in want and bool(found) and all(s == worker for s, _ in found)
            takes = [] if whole else found
            sends = [(to, box) for to, box in sent.get(worker, ()) if to != worker or takes]
            kind = self._kind_of_part(group, has.get(worker), sends, want.get(worker), takes) if sends or takes else None
            yield ExchangePart(worker, kind, bool(found), whole, bool(sends), bool(takes))

    def _kind_of_part(self, group: tuple, has: Box | None, sends: list, want: Box | None, takes: list) -> Kind:
        mine = Spec(has[1], self.spec.dtype) if has and sends else None
        statics = (
            group,
            tuple((to, _relative(box, has), box[1]) for to, box in sends) if has else (),
            tuple((s, _relative(box, want), box[1]) for s, box in takes) if want else (),
            want[1] if want and takes else None,
            self.spec.dtype.code,
        )
        return infer(TABLE["exchange"], (int,) if mine is None else (mine, int), statics)

    def _empty(self, worker: int, shape: Shape, out: Slot) -> None:
        """An empty piece, for a worker that has no piece to slice."""
        self.draft.step(worker, _full(shape, self.spec.dtype.code), (out,), (self.draft.constant(0),))

    def _terms(self, target: Layout) -> None:
        """Make a replicated tensor partial: the first worker keeps it, the others have zeros; of an idempotent reduction all
        keep their copies."""
        dims = [
            d
            for d, p in enumerate(target.placements)
            if isinstance(p, Partial) and self.layout.placements[d] != p and p.reduce not in IDEMPOTENT
        ]
        if dims:
            boxes, zero = target.boxes(self.spec.shape), self.draft.temporary()
            for at, worker in enumerate(target.workers):
                coordinates = target.mesh.coordinates(at)
                if any(coordinates[d] for d in dims):
                    self._empty(worker, boxes[at][1], zero)
                    self.slots[worker] = zero
        self.layout = target


@lru_cache(KEPT)
def _boxes(layout: Layout, shape: Shape) -> dict[int, Box]:
    """The piece of each worker."""
    return dict(zip(layout.workers, layout.boxes(shape)))


def forget_pieces() -> None:
    """Drop the kept pieces of layouts."""
    _boxes.cache_clear()


@lru_cache(KEPT)
def _full(shape: Shape, dtype: int) -> Kind:
    return infer(TABLE["full"], (int,), (shape, dtype))


def _relative(box: Box, within: Box) -> Shape:
    return tuple(s - t for s, t in zip(box[0], within[0]))


def _parts(source: Layout, goal: Layout, has: dict[int, Box], want: dict[int, Box], hosts: Hosts) -> list[tuple[int, int, Box]]:
    """(source, destination, part) for each part of each worker's piece. Sources are the worker itself first, then workers of
    its host."""
    apart = [d for d, p in enumerate(source.placements) if isinstance(p, Partial)]  # whose pieces are not copies
    coordinates_of = {w: source.mesh.coordinates(at) for at, w in enumerate(source.workers)} if apart else {}
    holders: dict[tuple, list[int]] = {}
    for worker, box in has.items():
        holders.setdefault((box, tuple(coordinates_of[worker][d] for d in apart)), []).append(worker)
    parts = []
    for turn, (worker, box) in enumerate(want.items()):
        for (piece, terms), held in holders.items():
            if apart and terms != tuple(coordinates_of[worker][d] for d in apart):
                continue
            both = _common(piece, box)
            if both:
                parts.append((hosts.nearest(worker, held, turn), worker, both))
    return parts
