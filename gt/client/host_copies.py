"""Copies of tensors at the client, for scripts that read a tensor element by element: `labels[i].item()` in a Dataset. After a
few small reads of views of one tensor the whole tensor is read once, and further reads of its views use the copy. Values on
the workers never change, so a copy stays valid. A row of a tensor with a copy needs no instruction (UNMADE) until an op uses
its value: then `views.renew` computes it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.kinds import Known, Restricted
from gt.client.session import last_id
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
    """A value at the client, and the kind of a slice of one row."""

    __slots__ = ("array", "row", "rest")

    def __init__(self, value: Handle) -> None:
        self.array = value.numpy()
        self.array.flags.writeable = False
        spec, scope = value.spec, here()
        self.rest = (0,) * (spec.ndim - 1)
        self.row: Known | None = None
        if spec.shape:
            take = ((-1, 1), *((d, 1) for d in spec.shape[1:]))
            key = (SLICE, spec, *(int,) * spec.ndim, (take,))
            self.row = scope.kinds.get(key) or scope.learn(key, SLICE, (spec, *(int,) * spec.ndim), (take,))


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

    def row(self, base: Tensor, i: int) -> Tensor | None:
        """`base[i]` without an instruction; None if there is no copy, or gradients are required."""
        value = raw_handle(base)
        copy = self.copies.get(value.id)
        if copy is None or copy.row is None or base.base is not None or wants_gradient(base) or here().signal:
            return None
        n = value.spec.shape[0]
        if not -n <= i < n:
            return None
        made = (copy.row.number, last_id(value.session), UNMADE, i % n, *copy.rest)
        return Tensor(value, False, None, None, None, base, copy.row, made)

    def read(self, t: Tensor) -> np.ndarray | None:
        """The value of a view from a copy of its base; None if there is none."""
        if t.made[2] is UNMADE:
            copy = self.copies.get(raw_handle(t.base).id) if t.base is not None and t.base.base is None else None
            if copy is not None and copy.row is t.how:
                self.served += 1
                return copy.array[t.made[3]]
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
