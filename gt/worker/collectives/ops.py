"""The collectives, each written once over any transport: how a worker's tensors are laid out for it, and how the results are
made from the received arrays. The transports are `PeerMemoryGroup`, `Distributed`, `MailTransport` and, over two of them,
`TwoLevel`; the arrays are PyTorch's or, by mail, NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from gt.ops import Kind
from gt.spec import DTYPES, DType, Shape, Spec, split


class Work(Protocol):
    """A transport's operation in progress."""

    def done(self) -> bool: ...
    def wait(self) -> Any:
        """Once done: write the received data, or raise the error."""


class Transport(Protocol):
    """A transport: the operations of a group. All arrays are contiguous, and, except for `reduce` and `scatter`, bytes."""

    way: str

    def reduce(self, whole: Any, how: str) -> Work:
        """Reduce all members' arrays, in place."""

    def reduce_first(self, whole: Any, how: str) -> Work:
        """Reduce to the first member alone; the others' arrays are undefined afterwards."""

    def gather(self, out: Any, part: Any) -> Work:
        """Concatenate all members' parts into `out`."""

    def spread(self, tensor: Any) -> Work:
        """Broadcast the first member's array."""

    def swap(self, out: Any, data: Any, takes: list[int], sends: list[int]) -> Work:
        """All-to-all: send a part of `data` to each member and receive one from each into `out`, of these sizes."""

    def scatter(self, data: Any, sizes: list[int], how: str) -> tuple[Work, Callable[[], Any]]:
        """Reduce-scatter: the work, and a function that returns this member's part when the work is done. The parts, of these
        sizes, are consecutive in `data`."""

    def end(self) -> None:
        """A member is lost."""


class Arrays(Protocol):
    """The arrays that a transport moves, and their conversion from and to an engine's."""

    def moved(self, array: Any, spec: Spec) -> Any:
        """An engine's array as a contiguous array of the transport."""

    def result(self, array: Any, spec: Spec) -> Any:
        """A received array as the engine's."""

    def blank(self, shape: Shape, dtype: DType) -> Any: ...
    def owned(self, array: Any) -> Any:
        """The array itself if nothing else shares its memory, else a copy."""

    def reducible(self, array: Any, dtype: DType) -> tuple[Any, Callable[[Any], Any]]:
        """The array in a dtype that the transport can reduce, and the function back."""

    def contiguous(self, array: Any) -> Any: ...
    def joined(self, arrays: Sequence[Any], axis: int = 0) -> Any: ...
    def as_bytes(self, array: Any) -> Any:
        """The same memory as bytes."""

    def as_elements(self, data: Any, shape: Shape, dtype: DType) -> Any:
        """The same memory as elements of a dtype."""


class Part(NamedTuple):
    """One worker's part in a collective."""

    kind: Kind
    worker: int  # its index
    arrays: Arrays
    transport: Transport

    @property
    def group(self) -> tuple[int, ...]:
        return self.kind.settings["group"]


Begun = tuple[Work, Callable[[], list[Any]]]  # the work, and a function that returns the results when it is done


def begin(part: Part, operands: list[Any], failed_inputs: bool) -> Begun:
    """Take part in a collective. A worker whose operands failed takes part with arrays that nobody uses."""
    specs: list[Spec] = [part.kind.ins[i] for i in part.kind.tensor_operands]
    if failed_inputs:
        tensors = [part.arrays.blank(s.shape, s.dtype) for s in specs]
    else:
        tensors = [part.arrays.moved(a, s) for a, s in zip(operands, specs)]
    operands.clear()
    return COLLECTIVES[part.kind.row.name](part, *tensors)


def all_reduce(part: Part, *tensors: Any) -> Begun:
    arrays, specs = part.arrays, part.kind.outs
    whole = arrays.owned(tensors[0]) if len(tensors) == 1 else arrays.joined([t.reshape(-1) for t in tensors])
    flat, back = arrays.reducible(whole, specs[0].dtype)

    def finish() -> list[Any]:
        return [arrays.result(p, s) for p, s in zip(_cut_up(back(flat).reshape(-1), [s.numel for s in specs]), specs)]

    return part.transport.reduce(flat, part.kind.settings["reduce"]), finish


def reduce_scatter(part: Part, *tensors: Any) -> Begun:
    arrays, axis, n, outs = part.arrays, part.kind.settings["axis"], len(part.group), part.kind.outs
    pieces = [[_piece(t, axis, *split(t.shape[axis], n, i)) for t in tensors] for i in range(n)]
    sizes = [sum(_numel(p.shape) for p in each) for each in pieces]
    in_order = len(tensors) == 1 and axis == 0  # the parts are already consecutive
    data = tensors[0].reshape(-1) if in_order else arrays.joined([p.reshape(-1) for each in pieces for p in each])
    work, made = part.transport.scatter(data, sizes, part.kind.settings["reduce"])
    return work, lambda: [arrays.result(p, o) for p, o in zip(_cut_up(made(), [o.numel for o in outs]), outs)]


def all_gather(part: Part, tensor: Any) -> Begun:
    """Each member's piece is padded to the length of the longest."""
    arrays, out, n = part.arrays, part.kind.outs[0], len(part.group)
    axis, size = part.kind.settings["axis"], part.kind.settings["size"]
    most = split(size, n, 0)[1]
    shape = (*tensor.shape[:axis], most, *tensor.shape[axis + 1 :])
    if tensor.shape[axis] != most:
        padded = arrays.blank(shape, out.dtype)
        _piece(padded, axis, 0, tensor.shape[axis])[...] = tensor
        tensor = padded
    everyone = arrays.blank((n, *shape), out.dtype)
    work = part.transport.gather(arrays.as_bytes(everyone), arrays.as_bytes(tensor))

    def finish() -> list[Any]:
        if axis == 0 and size == n * most:
            return [arrays.result(everyone.reshape(out.shape), out)]
        parts = [_piece(everyone[i], axis, 0, split(size, n, i)[1]) for i in range(n)]
        return [arrays.result(arrays.joined(parts, axis), out)]

    return work, finish


def broadcast(part: Part, *tensors: Any) -> Begun:
    arrays = part.arrays
    if tensors:
        return part.transport.spread(arrays.as_bytes(tensors[0])), list
    out = part.kind.outs[0]
    taken = arrays.blank(out.shape, out.dtype)
    return part.transport.spread(arrays.as_bytes(taken)), lambda: [arrays.result(taken, out)]


def exchange(part: Part, *tensors: Any) -> Begun:
    settings, me, arrays = part.kind.settings, part.worker, part.arrays
    dtype = DTYPES[settings["dtype"]]
    sends = {to: arrays.contiguous(box(tensors[0], start, shape)) for to, start, shape in settings["sends"]}
    takes = {source: (start, shape) for source, start, shape in settings["takes"]}
    empty = arrays.blank((0,), dtype)
    shapes = [takes[m][1] if m in takes and m != me else (0,) for m in part.group]
    work, taken = _swap(part, [sends[m] if m in sends and m != me else empty for m in part.group], shapes, dtype)

    def finish() -> list[Any]:
        if not takes:
            return []
        out = part.kind.outs[0]
        parts = dict(zip(part.group, taken()))
        if len(takes) == 1 and out.shape == next(iter(takes.values()))[1] and me not in takes:
            return [arrays.result(parts[next(iter(takes))], out)]
        made = arrays.blank(out.shape, dtype)
        for source, (start, shape) in takes.items():
            box(made, start, shape)[...] = sends[me] if source == me else parts[source]
        return [arrays.result(made, out)]

    return work, finish


COLLECTIVES: dict[str, Callable[..., Begun]] = {
    collective.__name__: collective for collective in (all_reduce, reduce_scatter, all_gather, broadcast, exchange)
}


def _swap(part: Part, sends: list[Any], shapes: list[Shape], dtype: DType) -> tuple[Work, Callable[[], list[Any]]]:
    """Send an array to each member, and receive one of these shapes from each."""
    arrays = part.arrays
    sizes = [_numel(s) * dtype.size for s in shapes]
    out = arrays.as_bytes(arrays.blank((sum(map(_numel, shapes)),), dtype))
    parts = [arrays.as_bytes(s) for s in sends]
    filled = [p for p in parts if len(p)]
    data = filled[0] if len(filled) == 1 else arrays.joined(parts)
    work = part.transport.swap(out, data, sizes, [len(p) for p in parts])
    return work, lambda: [arrays.as_elements(p, s, dtype) for p, s in zip(_cut_up(out, sizes), shapes)]


def _numel(shape: Shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _cut_up(flat: Any, sizes: Sequence[int]) -> list[Any]:
    """Consecutive pieces of these sizes."""
    found, at = [], 0
    for size in sizes:
        found.append(flat[at : at + size])
        at += size
    return found


def _piece(array: Any, axis: int, start: int, size: int) -> Any:
    return array[(*(slice(None),) * axis, slice(start, start + size))]


def box(array: Any, start: Shape, shape: Shape) -> Any:
    return array[(*[slice(s, s + d) for s, d in zip(start, shape)], ...)]
