"""The plan of a run: steps over slots. A value is a view of a slot, so that reshaped, permuted and expanded values cost
nothing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gt.ops.movement import contiguous_strides
from gt.small import NATIVE
from gt.spec import DType, Spec, bool_, float32, int64

AXES = 4  # of loops in C
ALIGN = 64  # bytes
LARGEST = 3.4028234663852886e38  # of float32
MOST = 1 << 15  # elements of a tensor: larger ones gain by several threads, and by kernels that are written for them


COPIES = {float32: "copy_words", int64: "copy_longs", bool_: "copy_bytes"}


class Unfit(Exception):
    """A run cannot have this instruction."""


class View(NamedTuple):
    slot: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def numel(self) -> int:
        return Spec(self.shape).numel

    @property
    def is_contiguous(self) -> bool:
        return all(s == t or n == 1 for n, s, t in zip(self.shape, self.strides, contiguous_strides(self.shape)))


@dataclass
class Slot:
    """Memory of a run: an input, a number, or `nbytes` for a value, which is a result where it outlives the run; or a place in
    another slot, `offset` bytes behind the beginning of `base`."""

    number: float | None = None
    hole: bool = False
    nbytes: int = 0
    base: int = -1
    offset: int = 0
    spec: Spec | None = None  # of an input, or a result
    first: int = -1  # step that uses it
    last: int = -1


@dataclass
class RunStep:
    op: str
    out: int
    operands: tuple[int, ...]
    sizes: tuple[int, ...]
    second: int = -1  # the slot of a second result


@dataclass
class RunBuilder:
    slots: list[Slot] = field(default_factory=list)
    steps: list[RunStep] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)

    def _slot(self, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1

    def input(self, spec: Spec) -> View:
        self.inputs.append(at := self._slot(Slot(spec=spec)))
        return View(at, spec.shape, contiguous_strides(spec.shape), spec.dtype)

    def hole(self) -> View:
        self.holes.append(at := self._slot(Slot(hole=True)))
        return View(at, (), (), float32)

    def number(self, value: float) -> View:
        value = float(value)
        if abs(value) > LARGEST and abs(value) != float("inf"):
            raise Unfit("a number that float32 does not hold")
        return View(self._slot(Slot(number=value)), (), (), float32)

    def new(self, spec: Spec) -> View:
        if not 0 < spec.numel <= MOST:
            raise Unfit("an empty or a large tensor")
        at = self._slot(Slot(nbytes=spec.nbytes))
        return View(at, spec.shape, contiguous_strides(spec.shape), spec.dtype)

    def part(self, view: View, offset: int) -> View:
        """The view that begins so many elements behind the beginning of this one."""
        if not offset:
            return view
        slot = self.slots[view.slot]
        base, before = (view.slot, 0) if slot.base < 0 else (slot.base, slot.offset)
        return view._replace(slot=self._slot(Slot(base=base, offset=before + offset * view.dtype.size)))

    def emit(self, op: str, out: View, operands: Iterable[View], sizes: Iterable[int], second: View | None = None) -> None:
        used = tuple([view.slot for view in operands])
        at, behind = len(self.steps), -1 if second is None else second.slot
        for slot in (out.slot, behind, *used, *[self.slots[i].base for i in used]):
            if slot >= 0:
                self.slots[slot].first = at if self.slots[slot].first < 0 else self.slots[slot].first
                self.slots[slot].last = at
        self.steps.append(RunStep(op, out.slot, used, tuple(sizes), behind))

    def elementwise(self, op: str, spec: Spec, *operands: View) -> View:
        out = self.new(spec)
        self._elementwise(op, out, operands)
        return out

    def _elementwise(self, op: str, out: View, operands: Sequence[View]) -> None:
        dims, strides = collapsed(out.shape, [broadcast(view, out.shape) for view in operands])
        blank = ((0,) * AXES,) * (3 - len(operands))
        self.emit(op, out, operands, (*dims, *(s for each in (*strides, *blank) for s in each)))

    def contiguous(self, view: View) -> View:
        if view.is_contiguous:
            return view
        return self._copied(view, self.new(Spec(view.shape, view.dtype)))

    def _copied(self, view: View, out: View) -> View:
        self._elementwise(COPIES[view.dtype], out, [view])
        return out

    def check(self, view: View) -> None:
        """Raise unless a value could be a result of the run, if need be by a copy."""
        if view.numel > MOST or view.dtype not in COPIES:
            raise Unfit("a large value, or one of another dtype")
        collapsed(view.shape, [view.strides])

    def result(self, view: View, spec: Spec) -> int:
        """The slot of a result: that of the value, if it is all of a slot of its own."""
        slot = self.slots[view.slot]
        if not slot.nbytes or slot.spec is not None or slot.nbytes != spec.nbytes or not view.is_contiguous:
            view = self._copied(view, self.new(spec))
        self.slots[view.slot].spec = spec
        return view.slot

    def plan(self, results: Sequence[int], like: tuple[Any, ...]) -> Any:
        """The plan in C; `like` are tensors of the results' specs, or their numbers of bytes."""
        assert NATIVE is not None
        constant = [i for i, s in enumerate(self.slots) if s.number is not None]
        inner = [i for i, s in enumerate(self.slots) if s.nbytes and s.spec is None]
        parts = [i for i, s in enumerate(self.slots) if s.base >= 0]
        order = [*self.inputs, *results, *constant, *self.holes, *inner, *parts]
        position = {slot: n for n, slot in enumerate(order)} | {-1: -1}
        words = array("q")
        for step in self.steps:
            operands = [position[i] for i in step.operands]
            if step.second >= 0:
                operands.insert(1, position[step.second])
            row = [NATIVE.OPS[step.op], position[step.out], *operands, *[-1] * (3 - len(operands)), *step.sizes]
            words.extend(row + [0] * (NATIVE.WORDS - len(row)))
        offsets, size = self._memory(inner)
        numbers = array("f", [0.0 if (n := self.slots[i].number) is None else n for i in (*constant, *self.holes)])
        given = array("q", [spec.nbytes for i in self.inputs if (spec := self.slots[i].spec) is not None])
        shifts = array("q", [n for i in parts for n in (position[self.slots[i].base], self.slots[i].offset)])
        return NATIVE.plan(words, given, array("q", offsets), shifts, numbers, like, len(self.holes), size)

    def _memory(self, inner: list[int]) -> tuple[list[int], int]:
        """The offset of each value that only the run uses, and the bytes of all: values that are not alive together may share
        memory."""
        placed: dict[int, tuple[int, int]] = {}
        for i in sorted(inner, key=lambda i: self.slots[i].first):
            slot, at = self.slots[i], 0
            alive = sorted(span for j, span in placed.items() if self.slots[j].last >= slot.first)
            for begin, end in alive:
                if at + slot.nbytes <= begin:
                    break
                at = max(at, end)
            placed[i] = at, -(-(at + slot.nbytes) // ALIGN) * ALIGN
        return [placed[i][0] for i in inner], max((end for _, end in placed.values()), default=0)


def broadcast(view: View, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a view that is expanded to this shape."""
    lead = len(shape) - len(view.shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(view.shape, shape[lead:])):
        raise Unfit("an operand that is not broadcast to the result")
    return (0,) * lead + tuple([0 if n == 1 else s for n, s in zip(view.shape, view.strides)])


def collapsed(shape: tuple[int, ...], strides: list[tuple[int, ...]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The same loop over few axes: those of size 1 are left out, and an axis is joined with the next one where all operands
    have one stride for both."""
    dims: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis in [i for i, n in enumerate(shape) if n != 1]:
        n = shape[axis]
        if dims and all(own[-1] == each[axis] * n for own, each in zip(steps, strides)):
            dims[-1] *= n
            for own, each in zip(steps, strides):
                own[-1] = each[axis]
        else:
            dims.append(n)
            for own, each in zip(steps, strides):
                own.append(each[axis])
    if len(dims) > AXES:
        raise Unfit("more axes than a loop has")
    missing = AXES - len(dims)
    return (1,) * missing + tuple(dims), [(0,) * missing + tuple(own) for own in steps]
