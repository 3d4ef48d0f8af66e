"""Instructions on several workers: plans bound to a client's numbers, targets of its signals, reads and loads in pieces."""

from __future__ import annotations

from typing import Any

from gt.dispatcher import signals
from gt.dispatcher.flow import Flow
from gt.dispatcher.plan import Plan, Target, whole
from gt.dispatcher.steps import Bound
from gt.dispatcher.tables import Client, Entry, KindPlans, TracePlans
from gt.ops import TABLE, Kind, infer
from gt.ops.table import spec_out
from gt.program.code import FREES, encoded, first_result, number_of
from gt.spec import REPLICATE, Box, Layout, Partial, Shard, Spec, split
from gt.transport.messages import Fetch, Mail, Note, kind_out


def bind(client: Client, use: KindPlans, plan: Plan, flow: Flow) -> Bound:
    """The plan with a client's numbers for its kinds; workers without the definitions of these kinds receive them."""
    named = {use.length + i: e for i, e in enumerate(plan.extra) if isinstance(e, Kind)}
    for worker, steps in plan.steps:
        told = client.told.setdefault(worker, set())
        for slot in dict.fromkeys(map(number_of, steps)):
            if slot in named:
                _define(client, worker, named[slot], told, flow)
            elif slot == 0 and use.definition.number not in told:
                told.add(use.definition.number)
                flow.kinds.setdefault(worker, []).append(use.definition)
    entries = tuple(map(Entry, plan.layouts, use.results))
    specs = dict(zip(use.tensor_positions, use.specs))
    relaid = tuple((slot, Entry(layout, specs[slot])) for slot, layout in plan.relaid)
    return Bound(plan, lambda kind: client.locals[kind.key], entries, relaid)


def _define(client: Client, worker: int, kind: Kind, told: set[int], flow: Flow) -> None:
    number = client.locals.get(kind.key)
    if number is None:
        client.last_local -= 1
        number = client.locals[kind.key] = client.last_local
        client.kinds[number] = kind
    if number not in told:
        told.add(number)
        flow.kinds.setdefault(worker, []).append(kind_out(number, kind))


def target(client: Client, signal: str, living: list[int], flow: Flow) -> Target | None:
    """The target of a client's signal, or None if it has none. The client is warned once of missing workers."""
    if signal not in client.targets:
        found = None
        if signal in client.signals:
            found, missing = signals.resolve(client.signals[signal], living)
            if missing and signal not in client.noted:
                client.noted.add(signal)
                there = f"there {'is' if len(living) == 1 else 'are'} {len(living)}"
                text = f"signal {signal!r} asks for workers that are not there ({there}): it uses the existing ones"
                flow.mail.append(Mail(client.name, Note(text)))
        client.targets[signal] = found
    return client.targets[signal]


def signalled(client: Client, use: TracePlans) -> bool:
    """Whether a trace contains ops of a signal with a target."""
    kinds = (client.uses.get(n) for n in use.kinds)
    return any(isinstance(u, KindPlans) and u.kind.signal in client.signals for u in kinds)


AHEAD = 512  # instructions searched for more tensors to reduce together
BUCKET = 32 << 20  # most bytes that are reduced together
SINGLE = 1 << 20  # bytes from which a tensor is reduced alone, in place: a bucket would cost a copy of it


def bucket(client: Client, code: list, position: int, use: KindPlans, plan: Bound, flow: Flow) -> bool:
    """Gradient bucketing: if an instruction needs a partial operand reduced, and following instructions of the same row do too,
    reduce all these operands in one collective, to replicated or sharded tensors. Returns whether it did."""
    ins = code[position]
    for slot, goal in plan.relaid:
        entry = client.entries[ins[slot]]
        if not isinstance(entry, Entry):
            continue
        layout, to = entry.layout, goal.layout
        dims = [d for d, p in enumerate(layout.placements) if isinstance(p, Partial)]
        if len(dims) != 1 or to is not layout.but(dims[0], to.placements[dims[0]]):
            continue
        whole = to.placements[dims[0]] == REPLICATE
        most = SINGLE if whole else BUCKET  # a reduce-scatter copies in any case
        found = {ins[slot]: entry.spec}
        total = entry.spec.nbytes
        if total >= most:
            continue
        for later in code[position + 1 : position + AHEAD]:
            other = client.uses.get(later[0]) if later else None
            if not isinstance(other, KindPlans) or other.kind.row is not use.kind.row or len(later) != len(ins):
                continue
            known = client.entries.get(later[slot])
            if not isinstance(known, Entry) or known.layout is not layout or known.spec.dtype is not entry.spec.dtype:
                continue
            spec = known.spec
            if (
                slot not in other.tensor_positions
                or spec.nbytes >= most
                or total + spec.nbytes > BUCKET
                or later[slot] in found
            ):
                continue
            if whole or _wants(client, other, later, slot, to):
                total += spec.nbytes
                found[later[slot]] = spec
        if len(found) > 1:
            _reduce(client, found, layout, dims[0], to, first_result(ins), flow)
            return True
    return False


def _wants(client: Client, use: KindPlans, ins: tuple, slot: int, to: Layout) -> bool:
    """Whether an instruction's cached plan redistributes this operand to the layout `to`."""
    plan = client.plans.get((ins[0], *[client.entries.get(ins[i]) for i in use.tensor_positions]))
    return isinstance(plan, Bound) and any(at == slot and goal.layout is to for at, goal in plan.relaid)


def _reduce(client: Client, tensors: dict[int, Spec], layout: Layout, dim: int, to: Layout, tag: int, flow: Flow) -> None:
    """Reduce several partial tensors in place in one collective."""
    reduce = layout.placements[dim].reduce  # type: ignore[union-attr]
    boxes = [layout.boxes(spec.shape) for spec in tensors.values()]
    placement = to.placements[dim]
    for line in layout.mesh.lines(dim):
        group = tuple(layout.workers[at] for at in line)
        for rank, at in enumerate(line):
            specs = tuple(Spec(b[at][1], spec.dtype) for b, spec in zip(boxes, tensors.values()))
            if isinstance(placement, Shard):
                sizes = tuple(split(s.shape[placement.axis], len(group), rank)[1] for s in specs)
                kind = infer(TABLE["reduce_scatter"], (*specs, int), (group, reduce, placement.axis, sizes))
            else:
                kind = infer(TABLE["all_reduce"], (*specs, int), (group, reduce))
            worker = group[rank]
            _define(client, worker, kind, client.told.setdefault(worker, set()), flow)
            flow.queue(worker).append(encoded(client.locals[kind.key], tensors, (*tensors, tag)))
    for id, spec in tensors.items():
        client.entries[id] = Entry(to, spec)


def alias(ins: tuple, at: tuple[int, ...]) -> tuple[int, ...]:
    """For each tensor operand, the index of the first operand that is the same tensor."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(ins[i], operand) for operand, i in enumerate(at)])


def reduced(client: Client, id: int, entry: Entry, flow: Flow) -> Entry:
    """Reduce a partial tensor before it is read, and return its new entry."""
    key = (0, entry)
    bound = client.plans.get(key)
    if bound is None:
        plan = whole(entry.spec, entry.layout)
        bound = client.plans[key] = bind(client, as_read(entry.spec), plan, flow)
    bound.write((0, id), flow.code)
    client.entries[id] = bound.entries[0]
    return bound.entries[0]


def as_read(spec: Spec) -> Any:
    """A stand-in for a KindPlans where the dispatcher itself reduces or moves a tensor."""
    return _Read(spec)


class _Read:
    """A stand-in for a KindPlans with one operand, where the dispatcher itself reduces or moves a tensor."""

    tensor_positions, length = FREES.tensor_positions, FREES.length

    def __init__(self, spec: Spec) -> None:
        self.specs = self.results = (spec,)


def pieces(layout: Layout, spec: Spec) -> list[tuple[int, Box]]:
    """The (worker, piece) pairs of a read, with every element once and without empty pieces."""
    found: dict[Box, int] = {}
    for worker, box in zip(layout.workers, layout.boxes(spec.shape)):
        found.setdefault(box, worker)
    some = [(worker, box) for box, worker in found.items() if all(box[1])]
    return some or [(layout.workers[0], layout.box(spec.shape, 0))]


def fetch(ticket: int, id: int, spec: Spec, layout: Layout, flow: Flow) -> None:
    """Write a read of each piece from the worker that has it."""
    parts = pieces(layout, spec)
    for worker, (start, shape) in parts:
        wire = spec_out(Spec(shape, spec.dtype))
        flow.gets.setdefault(worker, []).append(Fetch(ticket, id, wire, start, spec.shape, len(parts)))


def placement(client: Client, argument: Any) -> dict[str, Any] | None:
    """A tensor's layout for users: as text, and the piece of each worker. `argument` is the tensor's id and spec."""
    id = argument[0] if isinstance(argument, list) and argument else None
    entry = client.entries.get(id) if type(id) is int else None
    if not isinstance(entry, Entry):
        return None
    layout = entry.layout
    pieces = [[w, *box] for w, box in zip(layout.workers, layout.boxes(entry.spec.shape))]
    return {"layout": repr(layout), "pieces": pieces}
