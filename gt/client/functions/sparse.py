"""Sparse tensors, as in scripts with graphs: made of indices and values, multiplied by dense matrices, converted to dense
tensors. Only the client knows them: on the workers the indices and the values are ordinary tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import SparseGradient, Tensor
from gt.client.functions.create import as_tensor
from gt.client.functions.registry import FUNCTIONS
from gt.device import Device
from gt.errors import ArgumentError
from gt.ops.table import TABLE
from gt.spec import DType, int64

COO, CSR = "sparse_coo", "sparse_csr"


class SparseTensor(SparseGradient):
    """Indices, a row for each axis, and the values. Values of equal indices are summed."""

    is_sparse = True

    def __init__(self, indices: Tensor, values: Tensor, size: tuple[int, ...], coalesced: bool, layout: str = COO) -> None:
        self._places, self._held, self.shape, self._once, self.layout = indices, values, size, coalesced, layout

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(
            f"sparse tensors have no {name!r} in GT: they multiply dense matrices (sparse.mm, @), scale, add and transpose; "
            "use to_dense() for all else"
        )

    def __repr__(self) -> str:
        parts = f"indices={self._places},\n       values={self._held}"
        return f"tensor({parts},\n       size={self.shape}, nnz={self._nnz()}, layout=gt.{self.layout})"

    dtype = property(lambda self: self._held.dtype)
    device = property(lambda self: Device("gt"))
    ndim = property(lambda self: len(self.shape))
    requires_grad = property(lambda self: self._held.requires_grad)
    grad = property(lambda self: None if self._held.grad is None else self._like(self._held.grad))
    parts = property(lambda self: (self._places, self._held))  # indices and values, without the views of PyTorch's methods
    is_sparse_csr = property(lambda self: self.layout == CSR)

    def _like(self, values: Tensor) -> SparseTensor:
        return SparseTensor(self._places, values, self.shape, self._once, self.layout)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def _nnz(self) -> int:
        return self._places.shape[1]

    def sparse_dim(self) -> int:
        return self._places.shape[0]

    def dense_dim(self) -> int:
        return self.ndim - self.sparse_dim()

    def _indices(self) -> Tensor:
        return self._places

    def _values(self) -> Tensor:
        return self._held.detach()  # as in PyTorch, whose values() has the gradient

    def indices(self) -> Tensor:
        self._must_be_once("indices")
        return self._places

    def values(self) -> Tensor:
        self._must_be_once("values")
        return self._held

    def _must_be_once(self, name: str) -> None:
        if not self._once:
            raise RuntimeError(f"cannot get {name} of a sparse tensor that may have duplicate indices: call coalesce() first")

    def crow_indices(self) -> Tensor:
        counts = FUNCTIONS["bincount"](self._places[0], minlength=self.shape[0]).cumsum(0)
        return FUNCTIONS["cat"]([counts.new_zeros((1,)), counts])

    def col_indices(self) -> Tensor:
        return self._places[1]

    def is_coalesced(self) -> bool:
        return self._once

    def coalesce(self) -> SparseTensor:
        """The same tensor with sorted, unique indices and summed values."""
        if self._once:
            return self
        flat, step = self._places[0] * 0, 1
        for axis in reversed(range(self.sparse_dim())):
            flat, step = flat + self._places[axis] * step, step * self.shape[axis]
        kept, which = FUNCTIONS["unique"](flat, return_inverse=True)
        values = self._held.new_zeros((kept.shape[0], *self._held.shape[1:])).index_add(0, which, self._held)
        places = FUNCTIONS["stack"](FUNCTIONS["unravel_index"](kept, self.shape[: self.sparse_dim()]))
        return SparseTensor(places.to(int64), values, self.shape, True)

    def to_dense(self) -> Tensor:
        whole = self._held.new_zeros(self.shape)
        return whole.index_put(tuple(self._places[i] for i in range(self.sparse_dim())), self._held, accumulate=True)

    def to_sparse(self, *_: Any, **__: Any) -> SparseTensor:
        return SparseTensor(self._places, self._held, self.shape, self._once)

    to_sparse_coo = to_sparse

    def to_sparse_csr(self) -> SparseTensor:
        found = self.coalesce()
        return SparseTensor(found._places, found._held, self.shape, True, CSR)

    def to(self, *args: Any, **settings: Any) -> SparseTensor:
        return self._like(self._held.to(*args, **settings))

    def float(self) -> SparseTensor:
        return self._like(self._held.float())

    def double(self) -> SparseTensor:
        return self._like(self._held.double())

    def cpu(self, *_: Any, **__: Any) -> SparseTensor:
        return self

    cuda = cpu

    def detach(self) -> SparseTensor:
        return self._like(self._held.detach())

    def clone(self) -> SparseTensor:
        return self._like(self._held.clone())

    def requires_grad_(self, wanted: bool = True) -> SparseTensor:
        self._held.requires_grad_(wanted)
        return self

    def t(self) -> SparseTensor:
        return self.transpose(0, 1)

    T = property(lambda self: self.t())
    mT = property(lambda self: self.t())

    def transpose(self, dim0: int, dim1: int) -> SparseTensor:
        order = list(range(self.ndim))
        order[dim0], order[dim1] = order[dim1], order[dim0]
        if self.dense_dim():
            raise NotImplementedError("cannot transpose a sparse tensor with dense axes: use to_dense() first")
        places = FUNCTIONS["stack"]([self._places[i] for i in order])
        return SparseTensor(places, self._held, tuple(self.shape[i] for i in order), False, COO)

    def __mul__(self, other: Any) -> SparseTensor:
        if isinstance(other, Tensor) and other.ndim and other.shape == self.shape and not self.dense_dim():
            return self._like(self._held * other[tuple(self._places[i] for i in range(self.ndim))])
        if isinstance(other, SparseTensor) or isinstance(other, Tensor) and other.ndim:
            raise NotImplementedError(
                "a sparse tensor can be scaled by a number or a dense tensor of its shape: use to_dense()"
            )
        return self._like(self._held * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SparseTensor:
        return self * (1.0 / other)

    def __neg__(self) -> SparseTensor:
        return self._like(-self._held)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Tensor):
            return self.to_dense() + other
        if not isinstance(other, SparseTensor) or other.shape != self.shape:
            raise ArgumentError(f"cannot add {other!r} to a sparse tensor of {self.shape}")
        cat = FUNCTIONS["cat"]
        return SparseTensor(cat([self._places, other._places], 1), cat([self._held, other._held]), self.shape, False).coalesce()

    __radd__ = __add__

    def plus(self, other: Any) -> Any:
        """The sum of gradients: indices that both have stay twice, as finding them would be a read."""
        if isinstance(other, Tensor):
            return self.to_dense() + other
        cat = FUNCTIONS["cat"]
        return SparseTensor(cat([self._places, other._places], 1), cat([self._held, other._held]), self.shape, False)

    def zero_(self) -> SparseTensor:
        """Without elements."""
        self._places, self._held, self._once = self._places[:, :0], self._held[:0], True
        return self

    def __matmul__(self, other: Tensor) -> Tensor:
        return mm(self, other)

    def mm(self, other: Tensor) -> Tensor:
        return mm(self, other)

    matmul = spmm = mm

    def sum(self, dim: Any = None) -> Tensor:
        return self._held.sum() if dim is None else self.to_dense().sum(dim)


def _checked(places: Tensor, shape: tuple[int, ...]) -> None:
    found = places.numpy()
    if found.size and (found.min() < 0 or (found.max(1) >= np.array(shape[: found.shape[0]])).any()):
        raise ArgumentError(f"an index of the sparse tensor is outside its size {shape}")


def sparse_coo_tensor(
    indices: Any, values: Any = None, size: Any = None, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, check_invariants: Any = None, is_coalesced: bool | None = None,
) -> SparseTensor:  # fmt: skip
    """A sparse tensor of indices, a row for each axis, and values.

    >>> gt.sparse_coo_tensor([[0, 1], [1, 0]], [2.0, 3.0], (2, 2)).to_dense()
    tensor([[0., 2.],
            [3., 0.]])
    """
    places = as_tensor(indices).to(int64)
    held = as_tensor(values)
    held = held if dtype is None else held.to(dtype)
    if places.ndim != 2 or held.ndim < 1 or held.shape[0] != places.shape[1]:
        raise ArgumentError(f"expected indices (axes, n) and n values, got {places.shape} and {held.shape}")
    if size is None:
        size = (*((places.amax(1) + 1).tolist() if places.shape[1] else (0,) * places.shape[0]), *held.shape[1:])
    shape = tuple(int(d) for d in size)
    if len(shape) != places.shape[0] + held.ndim - 1:
        raise ArgumentError(f"indices of {places.shape[0]} axes and values of {held.shape} do not fit a tensor of size {shape}")
    _checked(places, shape)
    made = SparseTensor(places, held, shape, bool(is_coalesced))
    return made.requires_grad_() if requires_grad else made


def sparse_csr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, *, dtype: DType | None = None, device: Any = None,
    requires_grad: bool = False, check_invariants: Any = None,
) -> SparseTensor:  # fmt: skip
    """A sparse matrix of row pointers, columns and values."""
    starts, columns = as_tensor(crow_indices).to(int64), as_tensor(col_indices).to(int64)
    n = starts.shape[0] - 1
    rows = FUNCTIONS["arange"](n).repeat_interleave(starts.narrow(0, 1, n) - starts.narrow(0, 0, n))
    places = FUNCTIONS["stack"]([rows, columns])
    if size is None:
        size = (n, int(columns.amax().item()) + 1 if columns.shape[0] else 0)
    made = sparse_coo_tensor(places, values, size, dtype=dtype, requires_grad=requires_grad, is_coalesced=True)
    made.layout = CSR
    return made


def to_sparse(self: Tensor, sparse_dim: int | None = None, *, layout: Any = None, **_: Any) -> SparseTensor:
    """The indices of nonzero elements, which are read, and their values."""
    axes = self.ndim if sparse_dim is None else sparse_dim
    shown = self.detach() != 0
    for _axis in range(self.ndim - axes):
        shown = shown.any(-1)
    places = shown.nonzero().t()
    made = SparseTensor(places, self[tuple(places[i] for i in range(axes))], tuple(self.shape), True)
    return made.to_sparse_csr() if layout is not None and CSR in str(layout) else made


def _matrix(a: Any) -> SparseTensor:
    if not isinstance(a, SparseTensor) or a.ndim != 2 or a.dense_dim():
        raise ArgumentError(f"expected a sparse matrix, got {type(a).__name__} {getattr(a, 'shape', '')}")
    return a


def mm(mat1: Any, mat2: Any, reduce: str = "sum") -> Any:
    """The product of a sparse and a dense matrix; `reduce` ("sum", "mean", "amax", "amin") combines the terms of a row."""
    if not isinstance(mat1, SparseTensor):
        return mm(mat2.t(), mat1.mT).mT if isinstance(mat2, SparseTensor) else mat1 @ mat2
    a = _matrix(mat1)
    if not isinstance(mat2, Tensor):
        raise NotImplementedError("a product of two sparse matrices: make one of them dense with to_dense()")
    if mat2.ndim == 1:
        return mm(a, mat2.unsqueeze(-1), reduce).squeeze(-1)
    if mat2.ndim != 2 or mat2.shape[0] != a.shape[1]:
        raise ArgumentError(f"cannot multiply a sparse matrix of {a.shape} by {mat2.shape}")
    rows, columns, n = a._places[0], a._places[1], a.shape[0]
    if reduce in ("sum", "mean"):
        total = apply(TABLE["sparse_matmul"], (rows, columns, a._held, mat2), (n,))
        if reduce == "sum":
            return total
        return total / FUNCTIONS["bincount"](rows, minlength=n).clamp(min=1).unsqueeze(-1)
    if reduce not in ("amax", "amin"):
        raise ArgumentError(f"no reduction {reduce!r}: known are sum, mean, amax, amin")
    terms = mat2.index_select(0, columns) * a._held.unsqueeze(-1)
    start = terms.new_zeros((n, mat2.shape[1]))
    return start.scatter_reduce(0, rows.unsqueeze(-1).expand(terms.shape), terms, reduce, include_self=False)


def addmm(mat: Tensor, mat1: Any, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> Tensor:
    """`beta * mat + alpha * (mat1 @ mat2)`, mat1 sparse."""
    return mat * beta + mm(mat1, mat2) * alpha


def sampled_addmm(
    input: SparseTensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1.0, alpha: float = 1.0, out: Any = None
) -> SparseTensor:
    """The product of two dense matrices at the indices of a sparse one, plus its values."""
    if out is not None:
        raise ArgumentError("sampled_addmm has no out=: a sparse matrix does not change in place; use the returned one")
    a = _matrix(input)
    if mat1.ndim != 2 or mat2.ndim != 2:
        raise NotImplementedError(f"sampled_addmm: batches of matrices are not supported, got {mat1.shape} and {mat2.shape}")
    if (mat1.shape[0], mat2.shape[1]) != a.shape or mat1.shape[1] != mat2.shape[0]:
        raise ArgumentError(
            f"the product of {mat1.shape} and {mat2.shape} does not have the shape {a.shape} of the sparse matrix"
        )
    picked = mat1.index_select(0, a._places[0]) * mat2.mT.index_select(0, a._places[1])
    return a._like(picked.sum(1) * alpha + a._held * beta)


def sum_(input: SparseTensor, dim: Any = None, dtype: Any = None) -> Any:
    """The sum of all values, or a sparse tensor of sums along axes."""
    x = input if dtype is None else input.to(dtype)
    return x._held.sum() if dim is None else to_sparse(x.to_dense().sum(dim))


def _legacy(indices: Any, values: Any, size: Any = None) -> SparseTensor:
    return sparse_coo_tensor(indices, values, size)


SPARSE: dict[str, Any] = {
    "mm": mm, "spmm": mm, "addmm": addmm, "sampled_addmm": sampled_addmm, "sum": sum_, "FloatTensor": _legacy,
    "DoubleTensor": _legacy, "LongTensor": _legacy, "SparseTensor": SparseTensor,
}  # fmt: skip
FUNCTIONS["sparse_coo_tensor"], FUNCTIONS["sparse_csr_tensor"] = sparse_coo_tensor, sparse_csr_tensor
FUNCTIONS["spmm"] = FUNCTIONS["hspmm"] = mm
_T: Any = Tensor
_T.to_sparse = _T.to_sparse_coo = to_sparse
_T.to_sparse_csr = lambda self: to_sparse(self).to_sparse_csr()
