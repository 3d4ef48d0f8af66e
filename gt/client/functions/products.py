"""Matrix products, vector products, einsum."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

from gt.client.apply import apply, binary
from gt.client.autograd import Tensor
from gt.client.functions.create import arange
from gt.client.functions.in_place import in_place
from gt.client.functions.join import stack
from gt.client.functions.registry import alias, both, function, method
from gt.client.writes import become
from gt.errors import ArgumentError
from gt.ops.rules import axis_of, broadcast
from gt.ops.table import TABLE
from gt.spec import int64, promote_types


def _ranks(name: str, a: Tensor, b: Tensor, m: int, n: int) -> None:
    if a.ndim != m or b.ndim != n:
        raise ArgumentError(f"{name}: expected {m} and {n} dimensions, got {a.shape} and {b.shape}")


@both
def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product, batched over leading axes."""
    try:
        return binary(TABLE["matmul"], input, other)
    except (NotImplementedError, TypeError):
        if not hasattr(input, "spmm"):
            raise
        return input @ other  # of a sparse matrix


@both
def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    _ranks("mm", input, mat2, 2, 2)
    return input @ mat2


@both
def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices."""
    _ranks("bmm", input, mat2, 3, 3)
    if input.shape[0] != mat2.shape[0]:
        raise ArgumentError(f"bmm: expected batches of one size, got {input.shape} and {mat2.shape}")
    return input @ mat2


@both
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    _ranks("mv", input, vec, 2, 1)
    return input @ vec


@both
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The product of two vectors."""
    _ranks("dot", input, tensor, 1, 1)
    return input @ tensor


@both
def inner(input: Tensor, other: Tensor) -> Tensor:
    """The inner product over the last axis of both."""
    return input * other if not input.ndim or not other.ndim else tensordot(input, other, ([-1], [-1]))


@both
def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product of two vectors."""
    _ranks("outer", input, vec2, 1, 1)
    return input.unsqueeze(-1) * vec2


alias("ger", outer)


def _factors(like: Tensor, beta: float, alpha: float) -> tuple[float, float]:
    """The factors for a dtype: integers for integer tensors."""
    return (beta, alpha) if like.handle.spec.dtype.rank > 1 else (int(beta), int(alpha))


def weighted_sum(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    """`beta * input + alpha * product` in the tensors' dtype; for integer tensors the factors are integers."""
    dtype = promote_types(input.dtype, product.dtype)
    if dtype.rank < 2:
        beta, alpha = int(beta), int(alpha)
    return (product * alpha + input * beta).to(dtype)


@both
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)`."""
    _ranks("addmm", mat1, mat2, 2, 2)
    if isinstance(beta, complex) or isinstance(alpha, complex):
        return input * beta + (mat1 @ mat2) * alpha
    return apply(TABLE["addmm"], (input, mat1, mat2, *_factors(input, beta, alpha)))


@both
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (batch1 @ batch2)`."""
    _ranks("baddbmm", batch1, batch2, 3, 3)
    if isinstance(beta, complex) or isinstance(alpha, complex):
        return input * beta + (batch1 @ batch2) * alpha
    return apply(TABLE["addmm"], (input, batch1, batch2, *_factors(input, beta, alpha)))


@both
def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return weighted_sum(input, mv(mat, vec), beta, alpha)


@both
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return weighted_sum(input, outer(vec1, vec2), beta, alpha)


@both
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias`."""
    return apply(TABLE["linear"], (input, weight) if bias is None else (input, weight, bias))


@function
def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The product summed over the last axes of `a` and the first of `b`, or over the axes listed for each."""
    if isinstance(dims, int):
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
        left, right = [axis_of(i, a.ndim) for i in left], [axis_of(i, b.ndim) for i in right]
    for i, j in zip(left, right):  # an axis of one element is broadcast
        if a.shape[i] == 1 != b.shape[j]:
            b = b.sum(j, keepdim=True, dtype=b.dtype)
        elif b.shape[j] == 1 != a.shape[i]:
            a = a.sum(i, keepdim=True, dtype=a.dtype)
    if [a.shape[i] for i in left] != [b.shape[j] for j in right]:
        raise ArgumentError(f"cannot sum over axes {left} of {a.shape} with {right} of {b.shape}: sizes differ")
    keep_a, keep_b = ([i for i in range(t.ndim) if i not in axes] for t, axes in ((a, left), (b, right)))
    n = 1
    for i in left:
        n *= a.shape[i]
    rows = a.permute((*keep_a, *left)).reshape((-1, n) if n else (_count(a, keep_a), 0))
    columns = b.permute((*right, *keep_b)).reshape((n, -1) if n else (0, _count(b, keep_b)))
    return (rows @ columns).reshape(tuple(a.shape[i] for i in keep_a) + tuple(b.shape[i] for i in keep_b))


def _count(t: Tensor, axes: list[int]) -> int:
    n = 1
    for i in axes:
        n *= t.shape[i]
    return n


@both
def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product."""
    n = max(input.ndim, other.ndim)
    input, other = input.clone(), other.clone()  # PyTorch keeps copies, so the arguments may change
    a = input.reshape((1,) * (n - input.ndim) + input.shape)
    b = other.reshape((1,) * (n - other.ndim) + other.shape)
    wide = a.reshape([d for e in a.shape for d in (e, 1)]) * b.reshape([d for e in b.shape for d in (1, e)])
    return wide.reshape([d * e for d, e in zip(a.shape, b.shape)])


@function
def einsum(equation: str, *operands: Any) -> Tensor:
    """Products and sums by Einstein's notation: `gt.einsum("ij,jk->ik", a, b)`."""
    if isinstance(equation, Tensor):  # einsum(a, [0, 1], b, [1, 2], [0, 2]): axes by numbers
        every = (equation, *operands)
        terms = ["".join("..." if n is Ellipsis else ascii_letters[n] for n in axes) for axes in every[1::2]]
        if len(every) % 2:
            terms.append("".join("..." if n is Ellipsis else ascii_letters[n] for n in every[-1]))
        n = len(every) // 2
        return einsum(",".join(terms[:n]) + ("->" + terms[n] if len(every) % 2 else ""), *every[: 2 * n : 2])
    tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else list(operands)
    text = equation.replace(" ", "")
    left, arrow, out = text.partition("->")
    if strange := set(left + out) - set(ascii_letters) - {",", "."}:
        raise ArgumentError(f"einsum {equation!r}: expected letters, commas, ... and ->, found {min(strange)!r}")
    terms = left.split(",")
    if len(terms) != len(tensors):
        raise ArgumentError(f"einsum {equation!r}: expected {len(terms)} tensors, got {len(tensors)}")
    terms, out, tensors = _without_dots(terms, out if arrow else None, tensors)
    for i, term in enumerate(terms):
        while len(set(term)) < len(term):  # a repeated letter in one term selects the diagonal
            letter = next(c for c in term if term.count(c) > 1)
            first = term.index(letter)
            second = term.index(letter, first + 1)
            tensors[i] = tensors[i].diagonal(0, first, second)
            term = term[:first] + term[first + 1 : second] + term[second + 1 :] + letter
        terms[i] = term
    if len(tensors) == 1 and sorted(terms[0]) == sorted(out):
        return tensors[0].permute([terms[0].index(c) for c in out])  # a view, as in PyTorch
    if len(tensors) == 1 and tensors[0].dtype.rank < 2 and set(terms[0]) != set(out):
        tensors[0] = tensors[0].to(int64)  # a sum, as PyTorch computes it
    return apply(TABLE["einsum"], tuple(tensors), (",".join(terms) + "->" + out,))


def _without_dots(terms: list[str], out: str | None, tensors: list[Tensor]) -> tuple[list[str], str, list[Tensor]]:
    """Letters for `...`, aligned at the end and broadcast, and the result's letters if none are given."""
    used = set("".join(terms)) | set(out or "")
    spare = [c for c in ascii_letters if c not in used]
    shapes = []
    for term, t in zip(terms, tensors):
        if "..." in term:
            at, n = term.index("..."), t.ndim - len(term) + 3
            shapes.append(t.shape[at : at + n])
    whole = broadcast(*shapes) if shapes else ()
    dots = "".join(spare[: len(whole)])
    fresh = []
    for i, (term, t) in enumerate(zip(terms, tensors)):
        if "..." in term:
            at, n = term.index("..."), t.ndim - len(term) + 3
            shape = (*t.shape[:at], *whole[len(whole) - n :], *t.shape[at + n :])
            tensors[i] = t.expand(shape)
            term = term.replace("...", dots[len(dots) - n :])
        fresh.append(term)
    if out is None:
        letters = "".join(fresh)
        out = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots))
    return fresh, out.replace("...", dots), tensors


@both
def cross(input: Tensor, other: Tensor, dim: int = -1) -> Tensor:
    """The cross product along an axis of size 3."""
    a = [input.select(dim, i) for i in range(3)]
    b = [other.select(dim, i) for i in range(3)]
    return stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]], dim)


@function
def chain_matmul(*matrices: Tensor) -> Tensor:
    found = matrices[0] if len(matrices) > 1 else matrices[0].clone()
    for m in matrices[1:]:
        found = found @ m
    return found


@both
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = batch1 @ batch2
    return weighted_sum(input, product.sum(0).to(product.dtype), beta, alpha)


@function
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix: powers of each element, descending by default."""
    n = x.shape[0] if N is None else N
    powers = arange(n) if increasing else arange(n - 1, -1, -1) if n else arange(0)
    return x.unsqueeze(-1) ** powers.to(x.dtype if x.dtype.rank == 2 else int64)


for _f in (addmm, baddbmm, addmv, addr):
    method(in_place(_f.__name__, _f))


@method
def addbmm_(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """`addbmm` in place; the variable takes the result's shape if it is broadcast, as in PyTorch."""

    def added(x: Tensor) -> Tensor:
        return addbmm(x, batch1, batch2, beta=beta, alpha=alpha)

    grows = self.shape != (*batch1.shape[1:2], *batch2.shape[2:])
    return become(self, added) if grows else in_place("addbmm", added)(self)
