"""How one instruction becomes instructions for workers: which rule, what must move. Plans name no ids, so that they are
made once for a kind and the layouts of its operands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from gt.dispatcher.hosts import ONE, Hosts
from gt.dispatcher.redistribute import Bringing, cost
from gt.dispatcher.steps import Draft, Plan, Slot
from gt.ops import Kind
from gt.ops.table import Rule
from gt.program.code import Form, result_at
from gt.spec import REPLICATE, Layout, Mesh, Partial, Placement, Shape, Shard, Spec, split

__all__ = ["Plan", "Target", "choose", "whole"]
MANY = 400  # combinations of rules that are all looked at; past it, one dimension of the mesh after another
SMALL = 4096  # bytes of a tensor that does not draw others to where it lies


@dataclass(frozen=True, slots=True)
class Target:
    """Where a signal wants results. Axes may count from the end, and a tensor that lacks one is copied instead."""

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
    kind: Kind, layouts: tuple[Layout, ...], target: Target | None = None, alias: tuple[int, ...] = (), hosts: Hosts = ONE
) -> Plan:
    """The plan for a kind whose tensor operands are laid out so; one that has none is made where its layout says. Signals
    come as a target. `alias` says of each operand which is the first that is the same tensor."""
    first = layouts[0]
    if first.solo is not None and all(x is first for x in layouts) and (target is None or target.mesh.workers == first.workers):
        return Plan(first.solo, (first,) * len(kind.outs))
    goal = target.layout(kind.outs[0].shape) if target else None
    if kind.row.updates and first.solo is None:
        goal = first
    if not kind.tensor_operands:
        goal = goal or first
        if goal.solo is not None:
            return Plan(goal.solo, (goal,) * len(kind.outs))
        layouts = ()
    return _Choice(kind, layouts, goal, alias or tuple(range(len(layouts))), hosts).plan()


def whole(spec: Spec, layout: Layout) -> Plan:
    """The plan for reading what lies as terms: reduced where it is. The tensor is slot 1 of the instruction (kind, tensor)."""
    draft = Draft(2)
    target = Layout(layout.mesh, tuple(REPLICATE if isinstance(p, Partial) else p for p in layout.placements))
    Bringing(draft, spec, layout, 1, 1).to(target)
    return draft.plan((target,))


def rules_of(kind: Kind) -> list[Rule]:
    """What needs no communication, for one dimension of a mesh, beside whole copies everywhere."""
    return kind.row.shard(kind) if kind.row.shard else []


Rules = tuple[Rule, ...]  # one for each dimension of a mesh


class _Choice:
    """Looking for the cheapest legal rules, and writing the program for them."""

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
        )  # the goal is where it must lie, not where it should

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
        """Where it may be computed: where the signal says, else on the most workers that an operand of some size lies on."""
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
        """What to look for: few bytes, then results that lie as they should, then little that changes."""
        wanted = self._wanted(mesh, rules)
        if wanted is None:
            return (float("inf"), 0, 0, 0)
        total = sum(self._cost(i, x) for i, x in enumerate(wanted))
        out = _out(mesh, rules, 0)
        off = out.partial if self.goal is None else out is not self.goal
        lean = 0
        if self.goal is not None and (self.firm or not out.partial):
            lean = cost(self.kind.outs[0], out, self.goal, self.hosts)
            lean //= 1 if self.firm else 2  # a leaning moves nothing by itself
        elif out.partial and total:  # terms that come free are taken; others also cost what it takes to add them up
            lean = cost(self.kind.outs[0], out, Layout(mesh, (REPLICATE,) * len(mesh.shape)), self.hosts)
        changed = sum(a is not b for a, b in zip(wanted, self.layouts))
        return (total + lean, off, changed, out.partial)

    def _wanted(self, mesh: Mesh, rules: Rules) -> list[Layout] | None:
        """Where these rules want each operand, or None where that cannot be."""
        wanted = [Layout(mesh, tuple(rule[0][i] for rule in rules)) for i in self.kind.tensor_operands]
        for i, (want, has) in enumerate(zip(wanted, self.layouts)):
            if has.partial and want is not wanted[self.alias[i]]:
                return None  # the same terms cannot be both kept and reduced
            for d, p in enumerate(want.placements):
                there = has.placements[d] if has.mesh == mesh else None
                if isinstance(p, Partial) and p.reduce == "prod" and there != p:
                    return None
        return wanted

    def _cost(self, i: int, want: Layout) -> int:
        key = (self.alias[i], want)
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
                brought[key] = Bringing(draft, self.specs[i], layout, slot, 1, kept, self.hosts).to(want)
            operands[kind.tensor_operands[i]] = brought[key]
        layouts = tuple(_out(mesh, rules, i) for i in range(len(kind.outs)))
        moving = self.firm and layouts[0] is not self.goal
        results = tuple(draft.temporary() if moving else result_at(i) for i in range(len(layouts)))
        for worker, piece in zip(mesh.workers, pieces):
            slots = tuple(o[worker] if isinstance(o, dict) else o for o in operands)
            draft.step(worker, piece, results, slots)
        return draft.plan(self._deliver(draft, layouts, results) if moving else layouts)

    def _deliver(self, draft: Draft, layouts: tuple[Layout, ...], results: tuple[Slot, ...]) -> tuple[Layout, ...]:
        """Bring results to where they must lie."""
        assert self.goal is not None
        goals = tuple(Target(self.goal.mesh, self.goal.placements).layout(s.shape) for s in self.kind.outs)
        for i, (spec, layout, slot, goal) in enumerate(zip(self.kind.outs, layouts, results, goals)):
            for worker, last in Bringing(draft, spec, layout, slot, 1, True, self.hosts).to(goal).items():
                draft.rename(worker, last, result_at(i))
        return goals


def _out(mesh: Mesh, rules: Rules, i: int) -> Layout:
    return Layout(mesh, tuple(rule[1][i] for rule in rules))


def extent(kind: Kind, rule: Rule) -> int | None:
    """How long the axes are that a rule cuts; None where it cuts none."""
    for s, p in zip((*kind.ins, *kind.outs), (*rule[0], *rule[1])):
        if isinstance(p, Shard):
            return s.shape[p.axis]
    return None


def _pieces(kind: Kind, mesh: Mesh, rules: Rules) -> list[Kind] | None:
    """What each worker computes; None where a piece is no use of the op (as the largest of no elements)."""
    known: dict[tuple, Kind] = {}
    found = []
    for at in range(len(mesh.workers)):
        piece = kind
        for n, c, rule in zip(mesh.shape, mesh.coordinates(at), rules):
            size = extent(piece, rule)
            if size is None:
                continue
            key = (piece.key, rule, *split(size, n, c))
            if key not in known:
                try:
                    known[key] = piece.piece(rule, *split(size, n, c))
                except (ValueError, TypeError, IndexError):
                    return None
            piece = known[key]
        found.append(piece)
    return found
