"""Functions of singular values: pseudo-inverse, least squares, ranks, low-rank approximations; and covariance."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import empty, zeros
from gt.client.functions.dtype_info import finfo
from gt.client.functions.linalg import eigvalsh, linalg, qr, svd, svdvals
from gt.client.functions.random import randn
from gt.client.functions.registry import FUNCTIONS, alias, both, function
from gt.errors import ArgumentError
from gt.ops.table import TABLE
from gt.spec import int64


class LeastSquares(NamedTuple):
    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _tolerances(A: Tensor, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """The absolute and the relative tolerance of singular values; the default is the rounding error."""
    if rtol is None:
        rounding = max(A.shape[-2:]) * finfo(A.dtype).eps
        none = atol is None or not isinstance(atol, Tensor) and atol == 0
        rtol = rounding if none else (atol > 0).pick(0.0, rounding) if isinstance(atol, Tensor) else 0.0
    return 0.0 if atol is None else atol, rtol


def _per_matrix(x: Any) -> Any:
    """The tolerance of each matrix, from its singular values."""
    return x.unsqueeze(-1) if isinstance(x, Tensor) else x


@linalg
def pinv(input: Tensor, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The Moore-Penrose pseudo-inverse: singular values below the tolerance count as 0."""
    atol, rtol = _tolerances(input, atol, rcond if rtol is None else rtol)
    if not isinstance(atol, Tensor) and not isinstance(rtol, Tensor):
        return apply(TABLE["pinv"], (input, float(atol), float(rtol)), (bool(hermitian),))
    u, s, vh = svd(input, False)
    keep = (s > s.amax(-1, keepdims=True) * _per_matrix(rtol)) & (s > _per_matrix(atol))
    return vh.mH @ (keep.pick(s.reciprocal(), 0.0).unsqueeze(-1) * u.mH)


alias("pinverse", pinv)


@linalg
def matrix_rank(A: Tensor, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The number of singular values above the tolerance."""
    if A.ndim < 2:
        raise ArgumentError(f"matrix_rank: expected a matrix, got {A.shape}")
    if not min(A.shape[-2:]):
        return zeros(A.shape[:-2], dtype=int64)
    A = A.detach()
    s = eigvalsh(A).abs() if hermitian else svdvals(A)
    floor, share = (tol, 0.0) if tol is not None else _tolerances(A, atol, rtol)
    least = s.amax(-1, keepdims=True) * _per_matrix(share)
    return ((s > least) & (s > _per_matrix(floor))).sum(-1)


DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@linalg
def lstsq(A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The least-squares solution of A X = B, of minimal norm. As in PyTorch, residuals are returned for more rows than columns
    by drivers other than gelsy (the default), and singular values by gelsd and gelss."""
    way = driver or "gelsy"
    if way not in DRIVERS:
        raise ArgumentError(f"no driver {driver!r}: known are {', '.join(DRIVERS)}")
    if A.ndim < 2 or not B.ndim:
        raise ArgumentError(f"lstsq: expected a matrix A and right-hand sides B, got {A.shape} and {B.shape}")
    m, n = A.shape[-2:]
    vector = B.ndim == 1 or B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]
    right = B.unsqueeze(-1) if vector else B
    if right.shape[-2] != m:
        raise ArgumentError(f"lstsq: expected B with the rows of A, got A {A.shape} and B {B.shape}")
    X = pinv(A, rcond) @ right
    none = empty(0, dtype=A.dtype.to_real())
    left = X.real.reshape(-1).narrow(0, 0, 0).clone()
    if m > n and way != "gelsy":
        left = (A @ X - right).abs().square().sum(-2)
    rank = empty(0, dtype=int64) if way == "gels" else matrix_rank(A, rtol=rcond)
    sizes = svdvals(A.detach()) if way in ("gelsd", "gelss") else none
    return LeastSquares(X.squeeze(-1) if vector else X, left, rank, sizes)


def _basis(A: Tensor, q: int, niter: int) -> Tensor:
    """Orthonormal columns that approximately span the range of the matrix (Halko, Martinsson and Tropp 2009)."""
    found = qr(A @ randn(A.shape[-1], q, dtype=A.dtype.to_real()).to(A.dtype)).Q
    for _ in range(niter):
        found = qr(A @ qr(A.mH @ found).Q).Q
    return found


@function
def svd_lowrank(A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The largest singular values and their vectors, approximated by random projection; of `A - M` if M is given."""
    A = A if M is None else A - M
    m, n = A.shape[-2:]
    wide = m < n
    A = A.mH if wide else A
    basis = _basis(A, 6 if q is None else q, 2 if niter is None else niter)
    u, s, vh = svd(basis.mH @ A, False)
    u, v = basis @ u, vh.mH
    return (v, s, u) if wide else (u, s, v)


@function
def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Approximate principal components: `svd_lowrank` of the centred rows."""
    m, n = A.shape[-2:]
    q = min(6, m, n) if q is None else q
    if not 0 <= q <= min(m, n) or niter < 0:
        raise ValueError(f"q={q} components and niter={niter}: expected 0 <= q <= {min(m, n)} and niter >= 0")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, q, niter)


def _weights(name: str, w: Tensor | None, n: int, rank: int) -> Tensor | None:
    if w is None:
        return None
    if w.ndim > 1 or w.numel() != n:
        raise ArgumentError(f"{name} has one number for each of {n} observations, not {w.shape}")
    if w.dtype.rank != rank:
        raise ArgumentError(f"{name} are {'whole' if rank == 1 else 'floating-point'} numbers, not {w.dtype.name}")
    if bool((w < 0).any()):
        raise ArgumentError(f"{name}: expected numbers of 0 or more, got {w.min().item()}")
    return w


@both
def cov(input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
    """The covariance of rows; `fweights` are counts, `aweights` weights of the columns."""
    if input.ndim > 2:
        raise ArgumentError(f"cov: expected at most two axes, got {input.shape}")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    x = x if x.dtype.rank >= 2 else x.to(DEFAULT.dtype)
    n = x.shape[1]
    often, much = _weights("fweights", fweights, n, 1), _weights("aweights", aweights, n, 2)
    w = often if much is None else much if often is None else often * much
    total: Any = n if w is None else w.sum()
    centre = x.sum(1) / total if w is None else (x * w).sum(1) / total
    if w is not None and much is not None and correction != 0:
        count = total - (w * much).sum() / total * correction
    else:
        count = total - correction
    count = count.clamp(min=0) if isinstance(count, Tensor) else max(count, 0)
    away = x - centre.unsqueeze(1)
    found = away @ (away if w is None else away * w).mH
    return (found / count if isinstance(count, Tensor) or count else found / found.new_zeros(())).squeeze()


@both
def corrcoef(input: Tensor) -> Tensor:
    """The correlation of rows: `cov` of rows scaled to deviation 1."""
    c = cov(input)
    if not c.ndim:
        return c / c
    d = c.diagonal().real.sqrt()
    found = c / d.unsqueeze(1) / d
    if found.is_complex():
        return FUNCTIONS["complex"](found.real.clamp(-1.0, 1.0), found.imag.clamp(-1.0, 1.0))
    return found.clamp(-1.0, 1.0)
