"""Copies of tensors at the client, for scripts that read a tensor element by element: `labels[i].item()` in a Dataset. After a
few small reads of views of one tensor the whole of it is read once, and further reads of its views are served from that copy.
Values on the workers never change, so a copy is right for as long as it is kept. A row of a tensor that has a copy is made by
no instruction (UNMADE) until something else than a small read asks for its value: `views.renew` then makes it."""

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
SMALL = 256  # elements of a read that counts as small
LARGEST = 64 << 20  # bytes of all copies together
COUNTED = 1 << 10  # values whose reads are counted
SLICE = TABLE["slice"]
wants_gradient = RAW["requires_grad"].__get__


class _Host:
    """NumPy's names for the kernels of views, which need no others."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    conj_physical = staticmethod(np.conj)

    @staticmethod
    def getitem(array: np.ndarray, index: tuple) -> np.ndarray:
        return array[index]


HOST = _Host()


class Copy:
    """A value at the client, and how one row of it is sliced."""

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


class HostCopies:
    """The copies of one session, the oldest first, and how many reads they served."""

    def __init__(self) -> None:
        self.copies: dict[int, Copy] = {}  # by the id of the value
        self.counts: dict[int, int] = {}  # small reads of views of a value that has no copy
        self.bytes = self.served = 0

    def row(self, base: Tensor, i: int) -> Tensor | None:
        """`base[i]` that waits to be made; None where there is no copy, or gradients are wanted."""
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
        """The value of a view, from a copy of what it is a view of; None where there is none."""
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
        steps: list[Tensor] = []
        base = t
        while base.base is not None:
            if base.how is not SAME:
                if type(base.how) is not Known and type(base.how) is not Restricted:
                    return None
                steps.append(base)
            base = base.base
        value = raw_handle(base)
        copy = self.copies.get(value.id)
        if copy is None:
            if value.spec.nbytes > LARGEST or not steps or self._few(value.id):
                return None
            copy = self._copy(value)
        array = copy.array
        for view in reversed(steps):
            known: Any = view.how.known if type(view.how) is Restricted else view.how
            array = known.row.kernel(HOST, array, *view.made[3:], **known.kind.settings)
        self.served += 1
        return array

    def _few(self, id: int) -> bool:
        """Whether views of a value were read too seldom for a copy to pay."""
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
