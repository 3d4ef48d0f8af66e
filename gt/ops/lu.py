"""LU factorisation with partial pivoting."""

from __future__ import annotations

from gt.ops.estimate import cubic
from gt.ops.linalg import S, _batch, _floats
from gt.ops.table import Values, op
from gt.spec import Spec, float32, int32, int64


def _factored(a: Spec, *, check: bool) -> tuple[Spec, Spec]:
    _floats("lu_factor", a)
    return a, Spec((*a.shape[:-2], min(a.shape[-2:])), int32)


def _size(xp, a):
    """The size of a pivot: for a complex number, as in LAPACK, the sum of the magnitudes of its parts."""
    complex_ = a.dtype in (xp.complex64, xp.complex128)
    return xp.abs(xp.real(a)) + xp.abs(xp.imag(a)) if complex_ else xp.abs(a)


def _factor(xp, a, *, check):
    """Gaussian elimination; the pivots are the indices, from 1, of the exchanged rows."""
    m, n = a.shape[-2:]
    lu = xp.copy(xp.reshape(a, (Spec(tuple(a.shape[:-2])).numel, m, n)))
    pivots = xp.zeros((lu.shape[0], min(m, n)), dtype=xp.int32)
    for b in range(lu.shape[0]):
        for k in range(min(m, n)):
            at = k + int(xp.argmax(_size(xp, lu[b, k:, k]), axis=0))
            pivots[b, k] = at + 1
            if at != k:
                lu[b, [k, at]] = lu[b, [at, k]]
            if check and lu[b, k, k] == 0:
                raise ValueError(f"U[{k + 1}, {k + 1}] is zero, and would be divided by: use lu_factor_ex")
            if lu[b, k, k] != 0:
                lu[b, k + 1 :, k] = lu[b, k + 1 :, k] / lu[b, k, k]
                lu[b, k + 1 :, k + 1 :] = lu[b, k + 1 :, k + 1 :] - lu[b, k + 1 :, k : k + 1] * lu[b, k : k + 1, k + 1 :]
    return xp.reshape(lu, tuple(a.shape)), xp.reshape(pivots, (*a.shape[:-2], min(m, n)))


def _order(pivots: Spec, *, rows: int) -> Spec:
    return Spec((*pivots.shape[:-1], rows), int64)


def _exchanged(xp, pivots, *, rows):
    """The index in the matrix of each row of the product."""
    flat = xp.reshape(pivots, (Spec(tuple(pivots.shape[:-1])).numel, pivots.shape[-1]))
    order = xp.copy(xp.broadcast_to(xp.arange(0, rows), (flat.shape[0], rows)))
    for b in range(flat.shape[0]):
        for k in range(flat.shape[1]):
            at = int(flat[b, k]) - 1
            order[b, [k, at]] = order[b, [at, k]]
    return xp.reshape(order, (*pivots.shape[:-1], rows))


def _pull(gs, ys, ins, check):
    """In the basis of the triangles, each gradient in its half, then back through both and the permutation. The part of a
    matrix outside its square part depends on one triangle alone."""
    g, (lu, pivots) = gs[0], ys
    m, n = ins[0].shape[-2:]
    k = min(m, n)
    square, gl, gu = lu.narrow(-2, 0, k).narrow(-1, 0, k), g.narrow(-1, 0, k).tril(-1), g.narrow(-2, 0, k).triu(0)
    lower, upper = square.tril(-1), square.triu(0)
    gl1, gu1 = gl.narrow(-2, 0, k), gu.narrow(-1, 0, k)
    low, high = lower.mH @ gl1 + gl1, gu1 @ upper.mH
    if m > n:
        high = high - lu.narrow(-2, n, m - n).mH @ gl.narrow(-2, n, m - n)
    if n > m:
        low = low - gu.narrow(-1, m, n - m) @ lu.narrow(-1, m, n - m).mH
    inner, last = low.tril(-1) + high.triu(0), g.ndim - 1
    if n > m:
        right = square.op("solve_triangular", inner.mH, upper=True, unit=False).mH
        wide = right.op("cat", gu.narrow(-1, m, n - m), axis=last)
        found = square.mH.op("solve_triangular", wide, upper=True, unit=True)
    else:
        tall = square.mH.op("solve_triangular", inner, upper=True, unit=True)
        if m > n:
            tall = tall.op("cat", gl.narrow(-2, n, m - n), axis=last - 1)
        found = square.op("solve_triangular", tall.mH, upper=True, unit=False).mH
    order = pivots.op("pivot_order", rows=m)
    return [found.op("gather_grad", order.unsqueeze(-1).expand(found.shape), shape=found.shape, axis=found.ndim - 2)]


PIVOTS = Values(Spec((2, 3), int32), 3, 4)

op("lu_factor", compute_seconds=cubic, complex="own", shape=_factored, shard=_batch, keep="outputs", grad=_pull,
   tries=(((S,), {"check": True}), ((Spec((2, 3, 3), float32),), {"check": False}), ((Spec((4, 2), float32),), {"check": True}),
          ((Spec((2, 4), float32),), {"check": True})),
   kernel=_factor)  # fmt: skip
op("pivot_order", shape=_order, shard=None, tries=(((PIVOTS,), {"rows": 3}), ((Values(Spec((2,), int32), 3, 4),), {"rows": 4})),
   kernel=_exchanged)  # fmt: skip
