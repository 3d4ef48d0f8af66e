"""Plans an instruction on several workers: the choice of sharding rules, and the transfers that they need. A plan contains no
ids, so that it is made once for a kind and the layouts of its operands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from gt.dispatcher.hosts import ONE, Hosts
from gt.dispatcher.redistribute import Redistribution, cost, forget_pieces
from gt.dispatcher.steps import Draft, Plan, Slot
from gt.errors import ProtocolError
from gt.ops import Kind
from gt.ops.table import Rule
from gt.program.code import Form, result_at
from gt.spec import REPLICATE, Layout, Mesh, Partial, Placement, Shape, Shard, Spec, split

__all__ = ["Plan", "Target", "choose", "forget_kept", "whole"]
MANY = 400  # most combinations of rules that are all compared; above, rules are chosen one mesh dimension at a time
PIECES = 1 << 18  # operands times workers of one instruction: no other client has a turn while it is planned
FEW = 8  # operands, and workers of each, of a plan that is kept for other clients
KEPT = 1 << 9  # most such plans
SMALL = 4096  # bytes of a tensor up to which its mesh is no candidate for the op


@dataclass(frozen=True, slots=True)
class Target:
    """The layout that a signal asks for. Axes may count from the end; a tensor without the axis is replicated instead."""

    mesh: Mesh
    placements: tuple[Placement, ...]

    def layout(self, shape: Shape) -> Layout:
        n = len(shape)
        found: list[Placement] = []
        for p in self.placements:
            fits = isinstance(p, Shard) and -n <= p.axis < n
            found.append(Shard(p.axis % n) if isinstance(p, Shard) and fits else REPLICATE)
        return Layout(self.mesh, tuple(found))


def choose(
    kind: Kind, layouts: tuple[Layout, ...], target: Target | None = None, alias: tuple[int, ...] = (), hosts: Hosts = ONE,
    keep: bool = False,
) -> Plan:  # fmt: skip
    """The plan for a kind whose tensor operands have these layouts; for a kind without operands, the layout is the result's.
    `target` is the signal's. `alias` contains for each operand the index of the first operand that is the same tensor. With
    `keep`, which is for small kinds, the plan may be one that was made before."""
    first = layouts[0]
    if first.solo is not None and all(x is first for x in layouts) and (target is None or target.mesh.workers == first.workers):
        return Plan(first.solo, (first,) * len(kind.outs))
    few = keep and not hosts.several and len(layouts) <= FEW and (target is None or len(target.mesh.workers) <= FEW)
    if few and all(len(each.workers) <= FEW for each in layouts):
        return _kept(kind, layouts, target, alias)
    return _choose(kind, layouts, target, alias, hosts)


@lru_cache(KEPT)
def _kept(kind: Kind, layouts: tuple[Layout, ...], target: Target | None, alias: tuple[int, ...]) -> Plan:
    """The last plans of small kinds on a few workers of one host: clients of one program have the same kinds
    (`checks.kind_in`)."""
    return _choose(kind, layouts, target, alias, ONE)


def forget_kept() -> None:
    """Drop the kept plans, and the pieces of layouts in them. A worker has left: its index is never given again, so its plans
    are of no use, and their objects lie between those of later ones in memory."""
    _kept.cache_clear()
    forget_pieces()


def _choose(kind: Kind, layouts: tuple[Layout, ...], target: Target | None, alias: tuple[int, ...], hosts: Hosts) -> Plan:
    first = layouts[0]
    goal = target.layout(kind.outs[0].shape) if target else None
    if kind.row.updates and first.solo is None:
        goal = first
    if not kind.tensor_operands:
        goal = goal or first
        if goal.solo is not None:
            return Plan(goal.solo, (goal,) * len(kind.outs))
        layouts = ()
    workers = max(len(each.workers) for each in (*layouts, *((goal,) if goal else ())))
    if len(layouts) * workers > PIECES:
        raise ProtocolError(
            f"{kind.row} of {len(layouts)} operands on {workers} workers: expected at most {PIECES // workers}: "
            "use it on fewer operands at a time"
        )
    return _Choice(kind, layouts, goal, alias or tuple(range(len(layouts))), hosts).plan()


def whole(spec: Spec, layout: Layout) -> Plan:
    """The plan for reading a tensor with partial placements: reduce it in place. The tensor is slot 1 of the instruction
    (kind, tensor)."""
    draft = Draft(2)
    target = Layout(layout.mesh, tuple(REPLICATE if isinstance(p, Partial) else p for p in layout.placements))
    Redistribution(draft, spec, layout, 1, 1).to(target)
    return draft.plan((target,))


def rules_of(kind: Kind) -> list[Rule]:
    """The rules of a kind that need no communication along one dimension of a mesh, and replication."""
    return kind.row.shard(kind) if kind.row.shard else []


Rules = tuple[Rule, ...]  # one for each dimension of a mesh


class _Choice:
    """Finds the cheapest valid rules and writes the steps for them."""

    def __init__(
        self, kind: Kind, layouts: tuple[Layout, ...], goal: Layout | None, alias: tuple[int, ...], hosts: Hosts
    ) -> None:
        self.kind, self.layouts, self.goal, self.alias, self.hosts = kind, layouts, goal, alias, hosts
        self.specs: list[Spec] = [kind.ins[i] for i in kind.tensor_operands]
        whole = ((REPLICATE,) * len(kind.ins), (REPLICATE,) * len(kind.outs))
        self.rules: list[Rule] = [whole, *rules_of(kind)]
        self.costs: dict[tuple, int] = {}
        self.firm = goal is not None and (
            kind.row.obeys_signal or not kind.tensor_operands
        )  # the goal is required, not preferred

    def plan(self) -> Plan:
        found = []
        for mesh in self._meshes():
            for rank, rules in enumerate(self._combinations(mesh)):
                if self._wanted(mesh, rules) is not None:
                    found.append((*self._rank(mesh, rules), rank, mesh, rules))
        for *_, mesh, rules in sorted(found, key=lambda f: f[:-2]):
            pieces = _pieces(self.kind, mesh, rules)
            if pieces is not None:
                return self._write(mesh, rules, pieces)
        raise AssertionError(f"no rule fits {self.kind} on {self.layouts}")

    def _meshes(self) -> list[Mesh]:
        """The candidate meshes: the signal's, else the largest meshes of operands that are not small."""
        if self.goal is not None:
            return [self.goal.mesh]
        large = [x for x, s in zip(self.layouts, self.specs) if s.nbytes >= SMALL] or list(self.layouts)
        most = max(len(x.workers) for x in large)
        return list(dict.fromkeys(x.mesh for x in large if len(x.workers) == most))

    def _combinations(self, mesh: Mesh) -> Iterable[Rules]:
        dims = len(mesh.shape)
        if len(self.rules) ** dims <= MANY:
            return product(self.rules, repeat=dims)
        best: list[Rule] = [self.rules[0]] * dims
        for dim in range(dims):
            best[dim] = min(self.rules, key=lambda r: self._rank(mesh, (*best[:dim], r, *best[dim + 1 :])))  # noqa: B023
        return [tuple(best), (self.rules[0],) * dims]

    def _rank(self, mesh: Mesh, rules: Rules) -> tuple:
        """The sort key of rules: bytes moved, then whether the results have the preferred layout, then how many layouts
        change."""
        wanted = self._wanted(mesh, rules)
        if wanted is None:
            return (float("inf"), 0, 0, 0)
        total = sum(self._cost(i, x) for i, x in enumerate(wanted))
        out = _out(mesh, rules, 0)
        off = out.partial if self.goal is None else out is not self.goal
        lean = 0
        if self.goal is not None and (self.firm or not out.partial):
            lean = cost(self.kind.outs[0], out, self.goal, self.hosts)
            lean //= 1 if self.firm else 2  # a preference alone moves nothing
        elif out.partial and total:  # partial results without transfers cost nothing; others also cost their reduction
            lean = cost(self.kind.outs[0], out, Layout(mesh, (REPLICATE,) * len(mesh.shape)), self.hosts)
        changed = sum(a is not b for a, b in zip(wanted, self.layouts))
        return (total + lean, off, changed, out.partial)

    def _wanted(self, mesh: Mesh, rules: Rules) -> list[Layout] | None:
        """The layout of each operand that these rules need, or None if they contradict each other."""
        wanted = [Layout(mesh, tuple(rule[0][i] for rule in rules)) for i in self.kind.tensor_operands]
        for i, (want, has) in enumerate(zip(wanted, self.layouts)):
            if has.partial and want is not wanted[self.alias[i]]:
                return None  # one tensor cannot be both partial and reduced
            for d, p in enumerate(want.placements):
                there = has.placements[d] if has.mesh == mesh else None
                if isinstance(p, Partial) and p.reduce == "prod" and there != p:
                    return None
        return wanted

    def _cost(self, i: int, want: Layout) -> int:
        key = (self.specs[i], self.layouts[i], want)
        if key not in self.costs:
            self.costs[key] = cost(self.specs[i], self.layouts[i], want, self.hosts)
        return self.costs[key]

    def _write(self, mesh: Mesh, rules: Rules, pieces: list[Kind]) -> Plan:
        kind, form = self.kind, Form.of(self.kind)
        draft = Draft(form.length, kind)
        brought: dict[tuple[int, Layout], dict[int, Slot]] = {}
        operands: list[dict[int, Slot] | Slot] = [form.at(i) for i in range(len(kind.ins))]
        for i, want in enumerate(self._wanted(mesh, rules) or ()):
            key = (self.alias[i], want)
            if key not in brought:
                slot = form.tensor_positions[self.alias[i]]
                layout = draft.relaid.get(slot, self.layouts[i])
                kept = kind.row.obeys_signal
                rule = self._keeping(i, layout, want)
                brought[key] = Redistribution(draft, self.specs[i], layout, slot, 1, kept, self.hosts, rule).to(want)
            operands[kind.tensor_operands[i]] = brought[key]
        layouts = tuple(_out(mesh, rules, i) for i in range(len(kind.outs)))
        moving = self.firm and layouts[0] is not self.goal
        results = tuple(draft.temporary() if moving else result_at(i) for i in range(len(layouts)))
        for worker, piece in zip(mesh.workers, pieces):
            slots = tuple(o[worker] if isinstance(o, dict) else o for o in operands)
            draft.step(worker, piece, results, slots)
        return draft.plan(self._deliver(draft, layouts, results) if moving else layouts)

    def _keeping(self, i: int, has: Layout, want: Layout) -> tuple:
        """If an operand is gathered: a rule by which the op could take it sharded, along the axis that it has or another, with
        the other sharded operands as they are, in `all_gather`'s form. A rule whose results must be reduced helps if these are
        smaller. A copy that the user asks for has none."""
        if self.firm or has.mesh != want.mesh:
            return ()
        lost = [d for d, (p, q) in enumerate(zip(has.placements, want.placements)) if isinstance(p, Shard) and q == REPLICATE]
        found = [(p != has.placements[d], rule) for d in lost for p, rule in self._rules_for(i, d)]
        if not found:
            return ()
        rule = min(found, key=lambda f: f[0])[1]
        axes = tuple(p.axis if isinstance(p := rule[0][j], Shard) else -1 for j in self.kind.tensor_operands)
        return self.kind.row.name, self.kind.signal, i, axes

    def _rules_for(self, i: int, dim: int) -> Iterable[tuple[Shard, Rule]]:
        """Rules that shard an operand along a dimension of the mesh, and leave other operands sharded there as they are."""
        kind, mesh = self.kind, self.layouts[i].mesh
        smaller = sum(s.nbytes for s in kind.outs) < self.specs[i].nbytes
        there = {kind.tensor_operands[j]: x.placements[dim] for j, x in enumerate(self.layouts) if j != i and x.mesh == mesh}
        for rule in rules_of(kind):
            p, size = rule[0][kind.tensor_operands[i]], extent(kind, rule)
            if not isinstance(p, Shard) or size is None or size < mesh.shape[dim]:
                continue
            kept = all(rule[0][j] == q for j, q in there.items() if isinstance(q, Shard))
            if kept and (smaller or not any(isinstance(q, Partial) for q in rule[1])):
                yield p, rule

    def _deliver(self, draft: Draft, layouts: tuple[Layout, ...], results: tuple[Slot, ...]) -> tuple[Layout, ...]:
        """Move results to the required layout."""
        assert self.goal is not None
        goals = tuple(Target(self.goal.mesh, self.goal.placements).layout(s.shape) for s in self.kind.outs)
        for i, (spec, layout, slot, goal) in enumerate(zip(self.kind.outs, layouts, results, goals)):
            for worker, last in Redistribution(draft, spec, layout, slot, 1, True, self.hosts).to(goal).items():
                draft.rename(worker, last, result_at(i))
        return goals


def _out(mesh: Mesh, rules: Rules, i: int) -> Layout:
    return Layout(mesh, tuple(rule[1][i] for rule in rules))


def extent(kind: Kind, rule: Rule) -> int | None:
    """The length of the axes that a rule shards; None if it shards none."""
    for s, p in zip((*kind.ins, *kind.outs), (*rule[0], *rule[1])):
        if isinstance(p, Shard):
            return s.shape[p.axis]
    return None


def _pieces(kind: Kind, mesh: Mesh, rules: Rules) -> list[Kind] | None:
    """The kind that each worker computes; None if the op is invalid on a piece (such as the maximum of no elements)."""
    known: dict[tuple, Kind] = {}
    found = []
    for at in range(len(mesh.workers)):
        piece = kind
        for n, c, rule in zip(mesh.shape, mesh.coordinates(at), rules):
            size = extent(piece, rule)
            if size is None:
                continue
            key = (id(piece), id(rule), *split(size, n, c))  # (a kind of many operands takes long to hash)
            if key not in known:
                try:
                    known[key] = piece.piece(rule, *split(size, n, c))
                except (ValueError, TypeError, IndexError):
                    return None
            piece = known[key]
        found.append(piece)
    return found
