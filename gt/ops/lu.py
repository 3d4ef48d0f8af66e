"""A matrix as a product of two triangles, rows exchanged for safety."""

from __future__ import annotations

from gt.ops.linalg import S, _batch, _floats
from gt.ops.table import Values, op
from gt.spec import Spec, float32, int32, int64


def _factored(a: Spec) -> tuple[Spec, Spec]:
    _floats("lu_factor", a)
    return a, Spec((*a.shape[:-2], min(a.shape[-2:])), int32)


def _size(xp, a):
    """How large a pivot is: of a complex number, as LAPACK has it, the sum of its parts."""
    complex_ = a.dtype in (xp.complex64, xp.complex128)
    return xp.abs(xp.real(a)) + xp.abs(xp.imag(a)) if complex_ else xp.abs(a)


def _factor(xp, a):
    """Gauss's elimination; the pivots say, from 1, which row each was exchanged with."""
    lu = xp.copy(xp.reshape(a, (-1, *a.shape[-2:])))
    m, n = lu.shape[-2:]
    pivots = xp.zeros((lu.shape[0], min(m, n)), dtype=xp.int32)
    for b in range(lu.shape[0]):
        for k in range(min(m, n)):
            at = k + int(xp.argmax(_size(xp, lu[b, k:, k]), axis=0))
            pivots[b, k] = at + 1
            if at != k:
                lu[b, [k, at]] = lu[b, [at, k]]
            if lu[b, k, k] != 0:
                lu[b, k + 1 :, k] = lu[b, k + 1 :, k] / lu[b, k, k]
                lu[b, k + 1 :, k + 1 :] = lu[b, k + 1 :, k + 1 :] - lu[b, k + 1 :, k : k + 1] * lu[b, k : k + 1, k + 1 :]
    return xp.reshape(lu, tuple(a.shape)), xp.reshape(pivots, (*a.shape[:-2], min(m, n)))


def _order(pivots: Spec, *, rows: int) -> Spec:
    return Spec((*pivots.shape[:-1], rows), int64)


def _exchanged(xp, pivots, *, rows):
    """Where each row of the product comes from in the matrix."""
    flat = xp.reshape(pivots, (-1, pivots.shape[-1]))
    order = xp.copy(xp.broadcast_to(xp.arange(0, rows), (flat.shape[0], rows)))
    for b in range(flat.shape[0]):
        for k in range(flat.shape[1]):
            at = int(flat[b, k]) - 1
            order[b, [k, at]] = order[b, [at, k]]
    return xp.reshape(order, (*pivots.shape[:-1], rows))


def _pull(gs, ys, ins):
    """In the triangles' own terms, each gradient in its half; then back through both and the exchange of rows."""
    g, (lu, pivots) = gs[0], ys
    m, n = ins[0].shape[-2:]
    if m != n:
        raise ValueError(f"lu_factor has a gradient for square matrices only, not {ins[0].shape}")
    inner = (lu.tril(-1).mH @ g.tril(-1) + g.tril(-1)).tril(-1) + (g.triu(0) @ lu.triu(0).mH).triu(0)
    left = lu.mH.op("solve_triangular", inner, upper=True, unit=True)
    right = lu.op("solve_triangular", left.mH, upper=True, unit=False).mH
    order = pivots.op("pivot_order", rows=m)
    return [right.op("gather_grad", order.unsqueeze(-1).expand(right.shape), shape=right.shape, axis=right.ndim - 2)]


PIVOTS = Values(Spec((2, 3), int32), 3, 4)

op("lu_factor", complex="own", shape=_factored, shard=_batch, keep="outputs", grad=_pull,
   tries=(((S,), {}), ((Spec((2, 3, 3), float32),), {})),
   kernel=_factor)  # fmt: skip
op("pivot_order", shape=_order, shard=None, tries=(((PIVOTS,), {"rows": 3}), ((Values(Spec((2,), int32), 3, 4),), {"rows": 4})),
   kernel=_exchanged)  # fmt: skip
