"""Linear algebra, as `gt.linalg` and, as in PyTorch, as functions and methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import eye
from gt.client.functions.products import cross
from gt.client.functions.registry import FUNCTIONS, alias, both, function
from gt.errors import ArgumentError
from gt.ops.table import TABLE

LINALG: dict[str, Callable] = {}


def linalg(f: Callable) -> Callable:
    """A function of the `gt.linalg` namespace."""
    LINALG[f.__name__.removesuffix("_")] = f
    return f


class QR(NamedTuple):
    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigh(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class LogDet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


@linalg
@both
def inverse(input: Tensor) -> Tensor:
    """The inverse of square matrices."""
    return apply(TABLE["inverse"], (input,))


LINALG["inv"] = inverse


def _cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    if input.ndim != other.ndim:
        raise ArgumentError(f"linalg.cross: expected tensors of the same number of axes, got {input.shape} and {other.shape}")
    return cross(input, other, dim)


LINALG["cross"] = _cross


@linalg
@both
def det(input: Tensor) -> Tensor:
    """The determinant of square matrices."""
    return apply(TABLE["det"], (input,))


@linalg
@both
def slogdet(input: Tensor) -> LogDet:
    """The sign and the logarithm of the magnitude of the determinant."""
    return LogDet(*apply(TABLE["slogdet"], (input,)))


@both
def logdet(input: Tensor) -> Tensor:
    sign, log = slogdet(input)
    if sign.is_complex():
        return sign.log() + log
    return (sign < 0).pick(float("nan"), log)


@linalg
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The solution X of A X = B; with `left=False`, of X A = B."""
    if not left:
        return solve(A.mT, B.mT).mT
    vector = B.ndim == 1 or B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]
    return apply(TABLE["solve"], (A, B), (vector,))


@linalg
def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` for a triangular matrix, of which only the named half is read."""
    if not left:
        return solve_triangular(A.mT, B.mT, upper=not upper, unitriangular=unitriangular).mT
    return apply(TABLE["solve_triangular"], (A, B), (bool(upper), bool(unitriangular)))


@linalg
@both
def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """The lower triangle L with L @ L.mH equal to this symmetric positive-definite matrix."""
    found = apply(TABLE["cholesky"], (input,))
    return found.mH if upper else found


@function
def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    lower = L.mH if upper else L
    return solve_triangular(lower.mH, solve_triangular(lower, B, upper=False), upper=True)


@linalg
def qr(A: Tensor, mode: str = "reduced") -> QR:
    """The QR factorisation: orthonormal columns and an upper triangle."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"no mode {mode!r}: known are reduced, complete")
    return QR(*apply(TABLE["qr"], (A,), (mode == "complete",)))


@linalg
def svd(A: Tensor, full_matrices: bool = True) -> SVD:
    """The singular value decomposition: U, the descending singular values, and Vh."""
    return SVD(*apply(TABLE["svd"], (A,), (bool(full_matrices),)))


@linalg
def svdvals(A: Tensor) -> Tensor:
    return svd(A, False).S


@linalg
def eigh(A: Tensor, UPLO: str = "L") -> Eigh:
    """The ascending eigenvalues and the eigenvectors of symmetric matrices, of which only one triangle is read."""
    if UPLO not in ("L", "U"):
        raise ArgumentError(f"UPLO: expected L or U, got {UPLO!r}")
    return Eigh(*apply(TABLE["eigh"], (A if UPLO == "L" else A.mH,)))


@linalg
def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    return eigh(A, UPLO).eigenvalues


@linalg
def matrix_power(input: Tensor, n: int) -> Tensor:
    """The n-th power of a matrix."""
    if n < 0:
        return matrix_power(inverse(input), -n)
    found = None
    while n:
        if n & 1:
            found = input.clone() if found is None else found @ input
        n >>= 1
        input = input @ input if n else input
    if found is not None:
        return found
    none = FUNCTIONS["full"]((), False)  # a power of 0 has a gradient of zeros
    return none.pick(input, eye(input.shape[-1], dtype=input.dtype).expand(input.shape))


@linalg
def multi_dot(tensors: Any) -> Tensor:
    found = tensors[0]
    for t in tensors[1:]:
        found = found @ t
    return found


@linalg
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


@linalg
def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return A.diagonal(offset, dim1, dim2)


@linalg
@both
def matrix_exp(input: Tensor) -> Tensor:
    """The exponential of square matrices."""
    if input.dtype.rank == 2 and input.dtype.size < 4:
        return matrix_exp(input.float()).to(input.dtype)
    return apply(TABLE["matrix_exp"], (input,))


@both
def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix with this Cholesky factor."""
    return cholesky_solve(eye(input.shape[-1], dtype=input.dtype).expand(input.shape), input, upper)


@linalg
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    return (x.conj() * y).sum(dim)


@linalg
def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The Vandermonde matrix: ascending powers of each element."""
    x = x.reshape(1) if not x.ndim else x
    n = x.shape[-1] if N is None else N
    if n < 1:
        raise ArgumentError(f"vander: expected at least one column, got {n}")
    ones = FUNCTIONS["ones_like"](x).unsqueeze(-1)
    if n == 1:
        return ones
    return FUNCTIONS["cat"]([ones, x.unsqueeze(-1).expand(*x.shape, n - 1).cumprod(-1)], -1)


@linalg
def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse under `tensordot`; the first `ind` axes are the rows."""
    n = 1
    for d in A.shape[:ind]:
        n *= d
    return inverse(A.reshape(n, -1)).reshape(*A.shape[ind:], *A.shape[:ind])


@linalg
def tensorsolve(A: Tensor, B: Tensor, dims: Any = None) -> Tensor:
    """The solution X of tensordot(A, X) = B."""
    if dims is not None:
        A = A.movedim(tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    return solve(A.reshape(B.numel(), -1), B.reshape(-1)).reshape(A.shape[B.ndim :])


alias("matrix_power", matrix_power)


@both
def qr_(input: Tensor, some: bool = True) -> QR:
    return qr(input, "reduced" if some else "complete")


@both
def svd_(input: Tensor, some: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """As PyTorch's deprecated torch.svd: V is not transposed."""
    u, s, vh = svd(input, not some)
    return u, s, vh.mH


for _name in ("qr", "svd"):
    FUNCTIONS[_name] = FUNCTIONS.pop(f"{_name}_")
    setattr(Tensor, _name, getattr(Tensor, f"{_name}_"))
    delattr(Tensor, f"{_name}_")
alias("cholesky_solve", FUNCTIONS["cholesky_solve"])
