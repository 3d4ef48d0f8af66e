"""Copies of tensors at the client, for scripts that read a tensor element by element: `labels[i].item()` in a Dataset. After a
few small reads of views of one tensor the whole tensor is read once, and further reads of its views use the copy. Values on
the workers never change, so a copy stays valid. A row or an element of a tensor with a copy needs no instruction (UNMADE) until
an op uses its value: then `views.renew` computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.kinds import Known, Restricted
from gt.client.native import last_id
from gt.client.views import RAW, SAME, UNMADE, raw_handle, spec_of, stale
from gt.ops.table import TABLE

READS = 8  # small reads of views of one value after which it is copied
SMALL = 256  # most elements of a small read
LARGEST = 64 << 20  # most bytes of all copies together
COUNTED = 1 << 10  # most values whose reads are counted
SLICE = TABLE["slice"]
wants_gradient = RAW["requires_grad"].__get__


class _Host:
    """The NumPy functions that the kernels of views use."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    conj_physical = staticmethod(np.conj)

    @staticmethod
    def getitem(array: np.ndarray, index: tuple) -> np.ndarray:
        return array[index]


HOST = _Host()


class Copy:
    """A value at the client, and the kinds of a slice at one place of its first axes."""

    __slots__ = ("array", "spec", "kinds", "lengths")

    def __init__(self, value: Handle) -> None:
        self.array = value.numpy()
        self.array.flags.writeable = False
        self.spec = value.spec
        self.kinds: dict[int, Known] = {}  # by the number of axes
        self.lengths: dict[int, int] = {}  # the number of axes, by the number of the kind

    def slice_kind(self, count: int) -> Known:
        """The kind of a slice at one place of so many axes."""
        found = self.kinds.get(count)
        if found is None:
            spec, scope = self.spec, here()
            take = (*((-1, 1),) * count, *((d, 1) for d in spec.shape[count:]))
            key = (SLICE, spec, *(int,) * spec.ndim, (take,))
            found = scope.kinds.get(key) or scope.learn(key, SLICE, (spec, *(int,) * spec.ndim), (take,))
            self.kinds[count], self.lengths[found.number] = found, count
        return found

    def places(self, made: tuple) -> tuple:
        """The places at which a slice of such a kind lies."""
        return made[3 : 3 + self.lengths[made[0]]]

    def starts(self, places: tuple) -> list[int] | None:
        """Where a slice at these places starts on every axis; None if they are no places."""
        shape = self.spec.shape
        if not 0 < len(places) <= len(shape):
            return None
        found = [0] * len(shape)
        for k, i in enumerate(places):
            n = shape[k]
            if type(i) is not int or not -n <= i < n:
                return None
            found[k] = i if i >= 0 else i + n
        return found


def chain_of_ops(t: Tensor) -> tuple[Handle, list[Tensor]] | None:
    """The value of a view's last base, and the views between that are ops, the last view first; None if one is no single op."""
    steps: list[Tensor] = []
    while t.base is not None:
        if t.how is not SAME:
            if type(t.how) is not Known and type(t.how) is not Restricted:
                return None
            steps.append(t)
        t = t.base
    return raw_handle(t), steps


def applied(steps: list[Tensor], array: np.ndarray) -> np.ndarray:
    """The ops of a chain of views, applied to an array at the client."""
    for view in reversed(steps):
        known: Any = view.how.known if type(view.how) is Restricted else view.how
        array = known.row.kernel(HOST, array, *view.made[3:], **known.kind.settings)
    return array


class HostCopies:
    """The copies of one session, the oldest first, and the number of reads they served."""

    def __init__(self) -> None:
        self.copies: dict[int, Copy] = {}  # by the id of the value
        self.counts: dict[int, int] = {}  # small reads of views of a value without a copy
        self.bytes = self.served = 0

    def at(self, base: Tensor, index: int | tuple) -> Tensor | None:
        """`base[index]` without an instruction; None if there is no copy, gradients are required, or it is no index of ints. A
        part of a row that has no instruction either is one of the whole."""
        value = raw_handle(base)
        copy = self.copies.get(value.id)
        if copy is None:
            return None
        places: tuple = (index,) if type(index) is int else index  # type: ignore[assignment]
        if base.base is not None:
            row, base = base, base.base
            if row.made[2] is not UNMADE or base.base is not None or raw_handle(base) is not value or not places:
                return None
            places = (*copy.places(row.made), *places)
        if wants_gradient(base) or here().signal:
            return None
        starts = copy.starts(places)
        if starts is None:
            return None
        known = copy.slice_kind(len(places))
        return Tensor(value, False, None, None, None, base, known, (known.number, last_id(value.session), UNMADE, *starts))

    def read(self, t: Tensor) -> np.ndarray | None:
        """The value of a view from a copy of its base; None if there is none."""
        made = t.made
        if made[2] is UNMADE:
            copy = self.copies.get(raw_handle(t.base).id) if t.base is not None and t.base.base is None else None
            if copy is not None and made[0] in copy.lengths:
                self.served += 1
                return copy.array[copy.places(made)]
        elif stale(t):
            _ = t.handle
        return self._read(t)

    def _read(self, t: Tensor) -> np.ndarray | None:
        if spec_of(t).numel > SMALL:
            return None
        chain = chain_of_ops(t)
        if chain is None:
            return None
        value, steps = chain
        copy = self.copies.get(value.id)
        if copy is None:
            if value.spec.nbytes > LARGEST or not steps or self._few(value.id):
                return None
            copy = self._copy(value)
        self.served += 1
        return applied(steps, copy.array)

    def _few(self, id: int) -> bool:
        """Count a small read. Returns whether there were too few for a copy to pay."""
        if len(self.counts) > COUNTED:
            self.counts.clear()
        self.counts[id] = self.counts.get(id, 0) + 1
        return self.counts[id] < READS

    def _copy(self, value: Handle) -> Copy:
        copy = Copy(value)
        while self.copies and self.bytes + copy.array.nbytes > LARGEST:
            self.bytes -= self.copies.pop(next(iter(self.copies))).array.nbytes
        self.copies[value.id] = copy
        self.bytes += copy.array.nbytes
        del self.counts[value.id]
        return copy
