"""Linear algebra of matrices, the last two axes; the others are a batch and may be sharded."""

from __future__ import annotations

from gt.errors import LinAlgError
from gt.ops.estimate import cubic, iterative
from gt.ops.rules import broadcast, real_part
from gt.ops.table import Kind, Rule, Try, Values, op
from gt.spec import Shard, Spec, float32


def _floats(name: str, a: Spec) -> None:
    if a.dtype.rank < 2 or a.dtype.size < 4:
        raise TypeError(f"{name}: expected float32, float64 or complex numbers, got {a.dtype.name}")
    if a.ndim < 2:
        raise ValueError(f"{name}: expected a matrix, got {a.shape}")


def finite(xp, a):
    """The matrix, if its elements are finite: with infinities LAPACK's iterations may never end."""
    odd = int((~xp.isfinite(a)).sum())
    if odd:
        raise LinAlgError(f"the iteration would not converge: expected finite elements, got {odd} that are not finite")
    return a


def _square(name: str):
    def rule(a: Spec, **_: object) -> Spec:
        _floats(name, a)
        if a.shape[-1] != a.shape[-2]:
            raise ValueError(f"{name}: expected a square matrix, got {a.shape}")
        return a

    return rule


def _batch(kind: Kind) -> list[Rule]:
    """Matrices are independent."""
    lead = min(s.ndim for s in kind.ins if isinstance(s, Spec)) - 2
    n = len(kind.ins)
    same = len({s.shape[:lead] for s in kind.ins if isinstance(s, Spec)}) == 1 and len({s.ndim for s in kind.ins}) == 1
    return [((Shard(i),) * n, (Shard(i),) * len(kind.outs)) for i in range(lead)] if same else []


def _det(a: Spec) -> Spec:
    return Spec(_square("det")(a).shape[:-2], a.dtype)


def _logdet(a: Spec) -> tuple[Spec, Spec]:
    return _det(a), real_part(_det(a))


def _logdet_pull(gs, ys, ins):
    sign, g = ys[0], gs[1]
    if sign.is_complex():  # the sign depends on the matrix too
        g = g.op("complex", -(gs[0].conj() * sign).imag)
    return [g.unsqueeze(-1).unsqueeze(-1) * ins[0].inverse().mH]


def _solve(a: Spec, b: Spec, *, vector: bool) -> Spec:
    _square("solve")(a)
    if b.dtype is not a.dtype:
        raise TypeError(f"solve: expected one dtype, got {a.dtype.name} and {b.dtype.name}")
    n, rows = a.shape[-1], b.shape[-1:] if vector else b.shape[-2:-1]
    if rows != (n,):
        raise ValueError(f"cannot solve {a.shape} for {b.shape}: expected {n} rows")
    if vector:
        return b
    return Spec((*broadcast(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), a.dtype)


def _solve_kernel(xp, a, b, *, vector):
    return xp.linalg.solve(a, b[..., None])[..., 0] if vector else xp.linalg.solve(a, b)


def _solve_left(g, a, y, vector):
    rhs = a.mT.op("solve", g, vector=vector)
    return -(rhs.unsqueeze(-1) @ y.unsqueeze(-2) if vector else rhs @ y.mT)


def _triangular(a: Spec, b: Spec, *, upper: bool, unit: bool) -> Spec:
    return _solve(a, b, vector=False)


def _triangular_kernel(xp, a, b, *, upper, unit):
    n = a.shape[-1]
    t = xp.triu(a) if upper else xp.tril(a)
    if unit:
        on = xp.reshape(xp.arange(0, n), (-1, 1)) == xp.arange(0, n)
        t = xp.where(on, 0.0 * t + 1.0, t)
    return xp.solve_triangle(t, b, upper)


def _triangular_left(g, a, y, upper, unit):
    outer = -(a.mT.op("solve_triangular", g, upper=not upper, unit=unit) @ y.mT)
    diagonal = (1 if upper else -1) if unit else 0
    return outer.triu(diagonal) if upper else outer.tril(diagonal)


def _cholesky_grad(g, y):
    """Murray (2016): the lower triangle of yT g with half its diagonal, between two triangular solves, symmetrised."""
    inner = (y.mH @ g.tril(0)).tril(0)
    axes = (y.ndim - 2, y.ndim - 1)
    once = inner.op("diagonal", offset=0, axes=axes).op("diagonal_grad", shape=y.shape, offset=0, axes=axes)
    inner = (inner + inner.mH - once.conj()) * 0.5
    left = y.mH.op("solve_triangular", inner, upper=True, unit=False)
    return y.mH.op("solve_triangular", left.mH, upper=True, unit=False).mH


def _matrix_exp(xp, a):
    """The Taylor series of a fraction of the matrix, squared until it is the whole (scaling and squaring)."""
    size = xp.max(xp.sum(xp.abs(a), axis=(-1,)), axis=tuple(range(a.ndim - 1))) if a.size else 0.0
    halvings = max(0, int(xp.ceil(xp.log2(xp.maximum(size, 1e-30)))) + 4) if xp.isfinite(size) else 0
    part = a / 2.0**halvings
    n = a.shape[-1]
    one = xp.cast(xp.reshape(xp.arange(0, n), (-1, 1)) == xp.arange(0, n), float32.code)
    total = term = xp.broadcast_to(one, tuple(a.shape)) + 0.0 * part
    for k in range(1, 15):
        term = xp.matmul(term, part) / k
        total = total + term
    for _ in range(halvings):
        total = xp.matmul(total, total)
    return total


def _matrix_exp_grad(g, a):
    """The gradient is the upper right block of the exponential of [[aT, g], [0, aT]]."""
    n, last = a.shape[-1], a.ndim - 1
    t = a.mT
    top, bottom = t.op("cat", g, axis=last), (t * 0.0).op("cat", t, axis=last)
    return top.op("cat", bottom, axis=last - 1).op("matrix_exp").narrow(-2, 0, n).narrow(-1, n, n)


def _qr(a: Spec, *, complete: bool) -> tuple[Spec, Spec]:
    _floats("qr", a)
    *lead, m, n = a.shape
    k = m if complete else min(m, n)
    return Spec((*lead, m, k), a.dtype), Spec((*lead, k, n), a.dtype)


def _low_half(t):
    """The lower triangle, mirrored and conjugated: makes a product with an upper triangle Hermitian."""
    low = t.tril(0) + t.tril(-1).mH
    return (low + low.mH) * 0.5 if t.is_complex() else low


def _qr_pull(gs, ys, ins, complete):
    (gq, gr), (q, r) = gs, ys
    m, n = ins[0].shape[-2:]
    if complete and m > n:
        raise ValueError('qr with mode "complete" has no gradient for more rows than columns: use mode "reduced"')
    if m >= n:
        return [_qr_square(gq, gr, q, r)]
    # a wide matrix is a square one and a remainder: a = q [u v], and v does not influence q
    a = ins[0]
    v = a.narrow(-1, m, n - m)
    gu, gv = gr.narrow(-1, 0, m), gr.narrow(-1, m, n - m)
    left = _qr_square(gq + v @ gv.mH, gu, q, r.narrow(-1, 0, m))
    return [left.op("cat", q @ gv, axis=a.ndim - 1)]


def _qr_square(gq, gr, q, r):
    inner = r @ gr.mH - gq.mH @ q
    right = gq + q @ _low_half(inner)
    return r.op("solve_triangular", right.mH, upper=True, unit=False).mH


def _svd(a: Spec, *, full: bool) -> tuple[Spec, Spec, Spec]:
    _floats("svd", a)
    *lead, m, n = a.shape
    k = min(m, n)
    return (Spec((*lead, m, m if full else k), a.dtype), Spec((*lead, k), a.dtype.to_real()),
            Spec((*lead, n if full else k, n), a.dtype))  # fmt: skip


def _gaps(s):
    """1 / (sj - si) off the diagonal, 0 on it."""
    gap = s.unsqueeze(-2) - s.unsqueeze(-1)
    return (gap == 0).pick(0.0, (gap == 0).pick(1.0, gap).reciprocal())


def _svd_pull(gs, ys, ins, full):
    (gu, gs_, gv), (u, s, vh) = gs, ys
    if full:  # the vectors that complete a basis are arbitrary, and have no gradient
        k = s.shape[-1]
        gu, u, gv, vh = gu.narrow(-1, 0, k), u.narrow(-1, 0, k), gv.narrow(-2, 0, k), vh.narrow(-2, 0, k)
    gv = gv.mH
    v, k = vh.mH, s.shape[-1]
    f = _gaps(s * s)
    su, sv = u.mH @ gu, vh @ gv
    su, sv = su - su.mH, sv - sv.mH
    middle = f * su * s.unsqueeze(-2) + s.unsqueeze(-1) * (f * sv)
    axes = (s.ndim - 1, s.ndim)
    along = gs_
    if u.is_complex():  # the phase of each pair of vectors
        along = along + su.op("diagonal", offset=0, axes=axes) / (s * 2.0)
    middle = middle + along.op("diagonal_grad", shape=(*s.shape, k), offset=0, axes=axes)
    found = u @ middle @ vh
    inverse = s.reciprocal()
    if u.shape[-2] > k:
        outside = gu * inverse.unsqueeze(-2)
        found = found + (outside - u @ (u.mH @ outside)) @ vh
    if v.shape[-2] > k:
        outside = inverse.unsqueeze(-1) * gv.mH
        found = found + u @ (outside - outside @ v @ vh)
    return [found]


def _eigh(a: Spec) -> tuple[Spec, Spec]:
    _square("eigh")(a)
    return Spec(a.shape[:-1], a.dtype.to_real()), a


def _eigh_pull(gs, ys, ins):
    """Equal eigenvalues have no gradient of their vectors: here it is finite and wrong, in PyTorch infinite."""
    (gw, gv), (w, v) = gs, ys
    axes = (v.ndim - 2, v.ndim - 1)
    middle = _gaps(w) * (v.mH @ gv) + gw.op("diagonal_grad", shape=v.shape, offset=0, axes=axes)
    whole = v @ middle @ v.mH
    return [(whole + whole.mH) * 0.5]


S, B = Spec((3, 3), float32), Spec((3, 2), float32)
STACK = Values(Spec((3, 3, 3), float32), positive=True)
ROOT = Values(S, positive=True)
WELL: Try = ((ROOT,), {})
TALL = Spec((2, 4, 3), float32)

op("inverse", compute_seconds=cubic, complex="analytic", shape=_square("inverse"), shard=_batch, tries=(WELL, ((STACK,), {})),
   kernel=lambda xp, a: xp.linalg.inv(a),
   grad=(lambda g, y: -(y.mT @ g @ y.mT),))  # fmt: skip
op("det", compute_seconds=cubic, complex="analytic", shape=_det, shard=_batch, tries=(WELL, ((STACK,), {})),
   kernel=lambda xp, a: xp.linalg.det(a),
   grad=(lambda g, y, a: (g * y).unsqueeze(-1).unsqueeze(-1) * a.inverse().mT,))  # fmt: skip
op("slogdet", compute_seconds=cubic,
   unchecked="y1", complex="own", shape=_logdet, shard=_batch, tries=(WELL, ((STACK,), {})), keep="inputs outputs",
   kernel=lambda xp, a: tuple(xp.linalg.slogdet(a)),
   grad=_logdet_pull)  # fmt: skip
op("solve", compute_seconds=cubic, complex="analytic", shape=_solve, shard=_batch,
   tries=(((ROOT, B), {"vector": False}), ((ROOT, Spec((3,), float32)), {"vector": True}),
          ((STACK, Spec((3, 3, 2), float32)), {"vector": False})),
   kernel=_solve_kernel,
   grad=(_solve_left, lambda g, a, vector: a.mT.op("solve", g, vector=vector)))  # fmt: skip
op("solve_triangular", compute_seconds=cubic, complex="analytic", shape=_triangular, shard=_batch,
   tries=(((ROOT, B), {"upper": False, "unit": False}), ((ROOT, B), {"upper": True, "unit": False}),
          ((ROOT, B), {"upper": False, "unit": True}), ((STACK, Spec((3, 3, 2), float32)), {"upper": True, "unit": False})),
   kernel=_triangular_kernel,
   grad=(_triangular_left, lambda g, a, upper, unit: a.mT.op("solve_triangular", g, upper=not upper, unit=unit)))  # fmt: skip
op("cholesky", compute_seconds=cubic,
   complex="own", shape=_square("cholesky"), shard=_batch, tries=(WELL, ((STACK,), {})), grad=(_cholesky_grad,),
   kernel=lambda xp, a: xp.linalg.cholesky(a))  # fmt: skip
op("matrix_exp", compute_seconds=iterative, complex="analytic", shape=_square("matrix_exp"), shard=_batch,
   tries=(((S,), {}), ((Spec((2, 3, 3), float32),), {})),
   kernel=_matrix_exp,
   grad=(_matrix_exp_grad,))  # fmt: skip
op("qr", compute_seconds=cubic, unchecked="a", complex="own", shape=_qr, shard=_batch, keep="inputs outputs", grad=_qr_pull,
   tries=(((S,), {"complete": False}), ((TALL,), {"complete": False}), ((TALL,), {"complete": True}),
          ((Spec((2, 4), float32),), {"complete": False})),
   kernel=lambda xp, a, *, complete: tuple(xp.linalg.qr(a, "complete" if complete else "reduced")))  # fmt: skip
op("svd", compute_seconds=iterative, complex="own", shape=_svd, shard=_batch, keep="outputs", grad=_svd_pull,
   tries=(((S,), {"full": False}), ((TALL,), {"full": False}), ((Spec((2, 4), float32),), {"full": False})),
   kernel=lambda xp, a, *, full: tuple(xp.linalg.svd(finite(xp, a), full_matrices=full)))  # fmt: skip
op("eigh", compute_seconds=iterative, complex="own", shape=_eigh, shard=_batch, keep="outputs", grad=_eigh_pull,
   tries=(WELL, ((STACK,), {})),
   kernel=lambda xp, a: tuple(xp.linalg.eigh(finite(xp, a))))  # fmt: skip
