"""Factorisations of matrices: LU, LDL, Cholesky with its status, Householder reflections, and eigenvectors of general square
matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import arange, empty, eye, zeros
from gt.client.functions.linalg import LINALG, linalg, solve_triangular
from gt.client.functions.registry import alias, both, function
from gt.errors import ArgumentError, LinAlgError
from gt.ops.rules import broadcast
from gt.ops.table import TABLE
from gt.spec import int32


class LU(NamedTuple):
    LU: Tensor
    pivots: Tensor


class LUInfo(NamedTuple):
    LU: Tensor
    pivots: Tensor
    info: Tensor


class PLU(NamedTuple):
    P: Tensor
    L: Tensor
    U: Tensor


class LDL(NamedTuple):
    LD: Tensor
    pivots: Tensor


class LDLInfo(NamedTuple):
    LD: Tensor
    pivots: Tensor
    info: Tensor


class Triangle(NamedTuple):
    L: Tensor
    info: Tensor


class Inverse(NamedTuple):
    inverse: Tensor
    info: Tensor


class Solution(NamedTuple):
    result: Tensor
    info: Tensor


class Eig(NamedTuple):
    eigenvalues: Tensor
    eigenvectors: Tensor


class Reflections(NamedTuple):
    a: Tensor
    tau: Tensor


class Triangular(NamedTuple):
    solution: Tensor
    cloned_coefficient: Tensor


def _checked(name: str, info: Tensor, check: bool) -> Tensor:
    if check and bool((info != 0).any()):
        raise LinAlgError(f"linalg.{name}: a matrix is singular or not positive: see info, {info.tolist()}")
    return info


def _factored(A: Tensor, pivot: bool, check: bool) -> tuple[Tensor, Tensor]:
    if not pivot:
        raise RuntimeError("LU without pivoting is not implemented: use pivot=True, as PyTorch requires on a CPU")
    return apply(TABLE["lu_factor"], (A,), (check,))


@linalg
def lu_factor(A: Tensor, *, pivot: bool = True) -> LU:
    """Two triangles packed in one matrix, and the pivots."""
    return LU(*_factored(A, pivot, True))


def _first_zero(lu: Tensor) -> Tensor:
    """The index, from 1, of the first zero on the diagonal; 0 if there is none."""
    none = (lu.detach().diagonal(0, -2, -1) == 0).to(int32)
    if not none.shape[-1]:
        return zeros(none.shape[:-1], dtype=int32)
    return none.amax(-1) * (none.argmax(-1).to(int32) + 1)


@linalg
def lu_factor_ex(A: Tensor, *, pivot: bool = True, check_errors: bool = False) -> LUInfo:
    """`lu_factor`, and the index, from 1, of the first zero on U's diagonal, or 0."""
    lu, pivots = _factored(A, pivot, False)
    return LUInfo(lu, pivots, _checked("lu_factor_ex", _first_zero(lu), check_errors))


def _rows(B: Tensor, order: Tensor) -> Tensor:
    """The matrices with their rows permuted."""
    lead = broadcast(B.shape[:-2], order.shape[:-1])
    B = B.expand(*lead, *B.shape[-2:])
    at = order.unsqueeze(-1).expand(*lead, order.shape[-1], B.shape[-1])
    return apply(TABLE["gather"], (B, at), (B.ndim - 2,))


@linalg
def lu_solve(LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """`solve` with the factors of `lu_factor`; with `adjoint`, for the conjugate transpose."""
    if not left:
        return lu_solve(LU, pivots, B.mH, adjoint=not adjoint).mH
    order = apply(TABLE["pivot_order"], (pivots,), (LU.shape[-1],))
    if adjoint:
        upper = solve_triangular(LU.mH, B, upper=False)
        return _rows(solve_triangular(LU.mH, upper, upper=True, unitriangular=True), order.argsort(-1))
    lower = solve_triangular(LU, _rows(B, order), upper=False, unitriangular=True)
    return solve_triangular(LU, lower, upper=True)


alias("lu_solve", lambda b, LU_data, LU_pivots: LINALG["lu_solve"](LU_data, LU_pivots, b))  # the old order of arguments


@function
def lu_unpack(LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> PLU:
    """The matrices P, L and U that `lu_factor` packs; empty ones for those not requested."""
    m, n = LU_data.shape[-2:]
    k, none = min(m, n), empty(0, dtype=LU_data.dtype)
    P, L, U = none, none, none
    if unpack_pivots:
        order = apply(TABLE["pivot_order"], (LU_pivots,), (m,))
        P = (arange(m).unsqueeze(-1) == order.unsqueeze(-2)).to(LU_data.dtype)
    if unpack_data:
        L = LU_data.narrow(-1, 0, k).tril(-1) + eye(m, k, dtype=LU_data.dtype)
        U = LU_data.narrow(-2, 0, k).triu()
    return PLU(P, L, U)


@both
def lu(A: Tensor, pivot: bool = True, get_infos: bool = False) -> Any:
    """As PyTorch's deprecated torch.lu: packed factors, pivots and, if requested, the index of a zero pivot."""
    found = lu_factor_ex(A, pivot=pivot)
    return tuple(found) if get_infos else LU(*found[:2])


def _linalg_lu(A: Tensor, *, pivot: bool = True) -> PLU:
    """A permutation, a lower triangle with ones on its diagonal, and an upper triangle."""
    return lu_unpack(*_factored(A, pivot, False))


LINALG["lu"] = _linalg_lu


@linalg
def inv_ex(A: Tensor, *, check_errors: bool = False) -> Inverse:
    """The inverse, and a status: 0 if it exists."""
    info = _checked("inv_ex", _first_zero(_factored(A, True, False)[0]), check_errors)
    return Inverse(solve_ex(A, eye(A.shape[-1], dtype=A.dtype).expand(A.shape)).result, info)


@linalg
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Solution:
    """`solve`, and a status: 0 if there is one solution."""
    vector = B.ndim == 1 or B.ndim == A.ndim - 1 and B.shape == A.shape[:-1]
    lu, pivots = _factored(A, True, False)
    info = _checked("solve_ex", _first_zero(lu), check_errors)
    found = lu_solve(lu, pivots, B.unsqueeze(-1) if vector else B, left=left)
    return Solution(found.squeeze(-1) if vector else found, info)


@linalg
def cholesky_ex(input: Tensor, *, upper: bool = False, check_errors: bool = False) -> Triangle:
    """`cholesky`, and the order, from 1, of the first leading minor that is not positive, or 0."""
    found, info = apply(TABLE["cholesky_ex"], (input.mH if upper else input,))
    return Triangle(found.mH if upper else found, _checked("cholesky_ex", info, check_errors))


@linalg
def ldl_factor_ex(input: Tensor, *, hermitian: bool = False, check_errors: bool = False) -> LDLInfo:
    """A packed triangle and pivots of 1x1 and 2x2 blocks of a symmetric or Hermitian matrix."""
    found, pivots, info = apply(TABLE["ldl_factor"], (input,), (bool(hermitian),))
    return LDLInfo(found, pivots, _checked("ldl_factor_ex", info, check_errors))


@linalg
def ldl_factor(input: Tensor, *, hermitian: bool = False) -> LDL:
    return LDL(*ldl_factor_ex(input, hermitian=hermitian)[:2])


@linalg
def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """`solve` with the factors of `ldl_factor`."""
    return apply(TABLE["ldl_solve"], (LD, pivots, B), (bool(hermitian),))


@linalg
def eig(A: Tensor) -> Eig:
    """The complex eigenvalues and eigenvectors of square matrices."""
    return Eig(*apply(TABLE["eig"], (A,)))


@linalg
def eigvals(A: Tensor) -> Tensor:
    return eig(A).eigenvalues


@both
def geqrf(input: Tensor) -> Reflections:
    """The Householder reflections that triangularise a matrix, packed below the triangle."""
    return Reflections(*apply(TABLE["geqrf"], (input,)))


def _reflect(input: Tensor, tau: Tensor, x: Tensor, adjoint: bool) -> Tensor:
    """The product of all reflections, or its adjoint, applied to a matrix one by one."""
    m, k = input.shape[-2], tau.shape[-1]
    if not k:
        return x
    vectors = input.narrow(-1, 0, k).tril(-1) + eye(m, k, dtype=input.dtype)
    for i in range(k) if adjoint else reversed(range(k)):
        v, t = vectors.narrow(-1, i, 1), tau.narrow(-1, i, 1).unsqueeze(-1)
        x = x - (v @ (v.mH @ x)) * (t.conj() if adjoint else t)
    return x


@linalg
def householder_product(input: Tensor, tau: Tensor) -> Tensor:
    """The first columns of a product of reflections."""
    *lead, m, n = input.shape
    if m < n or tau.shape[-1] > n or tau.shape[:-1] != tuple(lead) or tau.dtype is not input.dtype:
        raise ArgumentError(f"invalid reflections {tau.shape} for a matrix of {input.shape}: expected m >= n >= k of one dtype")
    return _reflect(input, tau, eye(m, n, dtype=input.dtype).expand(*lead, m, n), False)


alias("orgqr", householder_product)


@both
def ormqr(input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    """A matrix multiplied by a product of reflections."""
    if input.ndim < 2 or other.ndim < 2 or not tau.ndim:
        raise ArgumentError(
            f"ormqr: expected matrices and a vector of reflections, got {input.shape}, {tau.shape}, {other.shape}"
        )
    if left:
        return _reflect(input, tau, other, transpose)
    return _reflect(input, tau, other.mH, not transpose).mH


@both
def triangular_solve(
    input: Tensor, A: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Triangular:
    """As PyTorch's deprecated torch.triangular_solve: the solution, and the triangle."""
    found = solve_triangular(A.mT if transpose else A, input, upper=upper != transpose, unitriangular=unitriangular)
    return Triangular(found, A.clone())
