"""PyTorch's own kernels for rows without a generic kernel, or with a slower one. Statics are keyword arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from gt.ops.activation import GELU_ZERO
from gt.ops.bessel import DEGREE, check_degree
from gt.ops.linalg import finite
from gt.ops.special import factorial
from gt.worker.engine.torch import aten, ctc, layers, recurrent
from gt.worker.engine.torch import training as steps
from gt.worker.engine.torch.ones import ones
from gt.worker.engine.torch.sparse import sparse_matmul

Array = torch.Tensor

# Fused kernels of many instructions of a row, which overwrite dying operands.
GATHERED: dict[str, Callable[..., Any]] = {
    "adam": steps.adam_in_place, "sgd": steps.sgd_in_place, "sgd_momentum": steps.sgd_momentum_in_place,
    "sgd_rows": steps.sgd_rows_in_place,
}  # fmt: skip
# Pointwise functions of PyTorch that take a Python number after the first operand.
NUMBERS = {"add", "sub", "mul", "div", "pow", "floor_divide", "remainder", "fmod", "eq", "ne", "lt", "le", "gt", "ge",
           "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "where", "clamp",
           "lerp"}  # fmt: skip


SMALL = 1 << 20  # elements up to which the launch and choice of a kernel matter more than its memory traffic
SUMMED = 1 << 25  # elements up to which a product with ones is the faster sum over rows, where there are many,
MANY = 512


def _linear(x: Array, w: Array, *bias: Array) -> Array:
    """In float32 on a GPU the bias of a small result is added separately: on an H200 cuBLASLt, which would add it in one
    kernel, takes up to twice as long (128x256 by 10 columns 15.9 us against 8.3, 256x1536 by 384 34 against 18), and saves at
    most 1 us for results of this size."""
    if bias and x.is_cuda and x.dtype is torch.float32 and x.numel() // max(x.shape[-1], 1) * w.shape[0] <= SMALL:
        return torch.matmul(x, w.t()) + bias[0]
    return F.linear(x, w, *bias)


def _bias_grad(g: Array) -> Array:
    """The sum over rows; in float32 on a GPU as a product with ones: on an H200 that takes 4.2 us with them for 2048 x 384
    (the sum 7.8), 5.4 for 2048 x 1536 (9.0), 35 for 8192 x 4096 (45), but 5.5 for 128 x 32768 (4.7)."""
    if g.is_cuda and g.dtype is torch.float32 and g.ndim > 1 and g.numel():
        rows = g.flatten(0, -2)
        if g.numel() <= (SUMMED if len(rows) >= MANY else SMALL):
            return torch.mv(rows.t(), ones(len(rows), rows))
    return g.sum(dim=tuple(range(g.ndim - 1))) if g.ndim > 1 else g


def _weight_grad(g: Array, x: Array) -> Array:
    if g.ndim == 1:
        return torch.outer(g, x)
    return torch.mm(g.t(), x) if g.ndim == 2 else torch.mm(g.flatten(0, -2).t(), x.flatten(0, -2))


def _pow_grad(g: Array, a: Array, b: Any) -> Array:
    return torch.mul(g, a).mul_(2) if b == 2 else g * a.pow(b - 1).mul_(b) if b else g * 0.0


def _spread_out(g: Array, *scale: Any, shape: Any, axis: Any, keepdims: bool) -> Array:
    if scale:
        g = g * scale[0]
    if not keepdims and g.ndim:
        for i in axis:
            g = g.unsqueeze(i)
    return g.expand(shape)


def _sum(a: Array, *, axis: Any, keepdims: bool) -> Array:
    return a.sum(dim=axis, keepdim=keepdims) if a.ndim else a.sum()


def _prod(a: Array, *, axis: Any, keepdims: bool) -> Array:
    if len(axis) == a.ndim:
        return a.prod().reshape((1,) * a.ndim if keepdims else ())
    for i in sorted(axis, reverse=True):
        a = a.prod(dim=i, keepdim=keepdims)
    return a


def _truth(function: Callable) -> Callable:
    def run(a: Array, *, axis: Any, keepdims: bool) -> Array:
        return function(a, dim=axis, keepdim=keepdims) if a.ndim else function(a)

    return run


def _spread(function: Callable) -> Callable:
    def run(a: Array, correction: float, *, axis: Any, keepdims: bool) -> Array:
        if not a.numel():
            return a.real.sum(dim=axis, keepdim=keepdims) * float("nan")
        return function(a, dim=axis, correction=correction, keepdim=keepdims)

    return run


def _norm(a: Array, *, order: float, axis: Any, keepdims: bool) -> Array:
    return torch.linalg.vector_norm(a, order, dim=axis, keepdim=keepdims)


def _maximum(a: Array, b: Any) -> Array:
    return torch.maximum(a, b) if isinstance(b, Array) else torch.clamp_min(a, b)


def _minimum(a: Array, b: Any) -> Array:
    return torch.minimum(a, b) if isinstance(b, Array) else torch.clamp_max(a, b)


def _addmm(c: Array, a: Array, b: Array, beta: float, alpha: float) -> Array:
    if a.ndim == 2:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    if a.ndim == 3 and a.shape[0] == b.shape[0]:
        return torch.baddbmm(c, a, b, beta=beta, alpha=alpha)
    return c * beta + (a @ b) * alpha


def _full_index(places: tuple, axes: Any, ndim: int) -> list:
    where = dict(zip(axes, places))
    return [where.get(i) for i in range(ndim)]


def _index_grad(g: Array, *places: Array, shape: Any, axes: Any) -> Array:
    zeros = torch.zeros(shape, dtype=g.dtype, device=g.device)
    return aten.index_put_(zeros, _full_index(places, axes, len(shape)), g, True)


def _index_put(a: Array, value: Any, *places: Array, axes: Any, accumulate: bool) -> Array:
    if not isinstance(value, Array):
        value = torch.full((), value, dtype=a.dtype, device=a.device)
    return aten.index_put(a, _full_index(places, axes, a.ndim), value, accumulate)


def _gather_grad(g: Array, index: Array, *, shape: Any, axis: int) -> Array:
    return torch.zeros(shape, dtype=g.dtype, device=g.device).scatter_add_(axis, index, g)


def _select_grad(g: Array, index: Array, *, shape: Any, axis: int) -> Array:
    return torch.zeros(shape, dtype=g.dtype, device=g.device).index_add_(axis, index, g)


def _embedding_grad(g: Array, index: Array, *, shape: Any, padding: int) -> Array:
    """On CPUs rows are added by `index_add_`, in the same order as by PyTorch's own gradient, which looks up a kernel for each
    row and takes up to three times as long; that one adds floats of 16 bits in float32."""
    if g.device.type != "cpu" or g.dtype.itemsize < 4:
        return aten.embedding_dense_backward(g, index, shape[0], padding, False)
    y = _select_grad(g.reshape(index.numel(), shape[1]), index.reshape(-1), shape=shape, axis=0)
    if padding >= 0:
        y[padding] = 0
    return y


def _with_places(function: Callable) -> Callable:
    return lambda a, *, axis, keepdims: tuple(function(a, axis, keepdims))


def _lcm(a: Array, b: Array) -> Array:
    """torch.lcm divides the least integer by -1 for any odd other operand, which ends the process (SIGFPE). Its least common
    multiple with any number but 0 overflows to itself, as in NumPy."""
    least = torch.iinfo(torch.result_type(a, b)).min
    if not least:
        return torch.lcm(a, b)
    found = torch.lcm(a.masked_fill(a == least, 1), b.masked_fill(b == least, 1))
    return found.masked_fill(((a == least) | (b == least)) & (a != 0) & (b != 0), least)


def _polygamma(a: Array, *, n: int) -> Array:
    """By the zeta function: torch.polygamma(1, a) has only nine correct digits."""
    if n == 0:
        return torch.digamma(a)
    wide = a.double() if a.dtype is torch.float64 or not a.dtype.is_floating_point else a.float()
    found = (-1.0) ** (n + 1) * factorial(n) * torch.special.zeta(n + 1.0, wide)
    return found.to(a.dtype if a.dtype.is_floating_point else torch.float32)


def _widened(function: Callable) -> Callable:
    """Compute 16-bit operands in 32 bits, as CUDA has no 16-bit kernel."""

    def run(a: Array, b: Array) -> Array:
        dtype = torch.result_type(a, b)
        return function(a.float(), b.float()).to(dtype) if dtype.itemsize == 2 else function(a, b)

    return run


def _met(function: Callable) -> Callable:
    def run(a: Array, *, axis: int) -> tuple[Array, ...]:
        return tuple(function(a, axis)) if a.ndim else (a.clone(), torch.zeros((), dtype=torch.int64, device=a.device))

    return run


def _mode(a: Array, *, axis: int, keepdims: bool) -> tuple[Array, ...]:
    return tuple(torch.mode(a, axis, keepdims))


def _logsumexp(a: Array, *, axis: Any, keepdims: bool) -> Array:
    return torch.logsumexp(a, axis, keepdims) if a.ndim else a.clone()


def _of_degree(function: Callable) -> Callable:
    """A polynomial by PyTorch's kernel, which iterates over the degree: with a bounded one. On a GPU, where a check would wait
    for the degrees, the results of higher ones are nan."""

    def run(x: Any, n: Any) -> Array:
        if not isinstance(n, Array):
            check_degree(n)
        elif n.is_cuda:
            return torch.where(n > DEGREE, math.nan, function(x, n.clamp(max=DEGREE)))
        elif n.numel():
            check_degree(n.max().item())
        return function(x, n)

    return run


def _ldl_solve(a: Array, pivots: Array, b: Array, *, hermitian: bool) -> Array:
    """LAPACK does not check pivots: each is the number of a row, from 1, and the two rows of a block have negative ones."""
    n = a.shape[-1]
    if pivots.numel():
        rows = torch.arange(n, device=pivots.device)
        two = pivots < 0
        edge = torch.nn.functional.pad(two, (1, 1))
        begin = torch.where(two & ~edge[..., :-2], rows, -1).cummax(-1).values
        odd = two & ~edge[..., 2:] & ((rows - begin) % 2 == 0)
        if bool((odd | (pivots.abs() < 1) | (pivots.abs() > n)).any()):
            raise IndexError(f"ldl_solve of {n} rows: expected pivots of ldl_factor, got {pivots.flatten()[:8].tolist()}")
    return torch.linalg.ldl_solve(a, pivots, b, hermitian=hermitian)


def _real_only(function: Callable, otherwise: Callable) -> Callable:
    """PyTorch's backward kernels conjugate their operand; rows get the conjugate already."""
    return lambda g, y: otherwise(g, y) if y.is_complex() else function(g, y)


def _tanh(tanh: bool) -> str:
    return "tanh" if tanh else "none"


def gelu_of_clamped(a: Array, *, tanh: bool) -> Array:
    """gelu with gelu(-inf) = 0, which is NaN in PyTorch. For compiled code, which fuses the clamp, and for GPUs, where checking
    a result for non-finite values would wait for it."""
    return F.gelu(a.clamp(min=GELU_ZERO), approximate=_tanh(tanh))


def _gelu(a: Array, *, tanh: bool) -> Array:
    """gelu with gelu(inf) = inf and gelu(-inf) = 0. On the CPU PyTorch's results are checked for non-finite values, which costs
    one sum. Those of oneDNN are NaN at infinity on x86-64, and infinite (tanh) from 2e38 on on aarch64."""
    if a.device.type != "cpu" or torch._C._len_torch_dispatch_stack():
        return gelu_of_clamped(a, tanh=tanh)
    y = F.gelu(a, approximate=_tanh(tanh))
    if math.isfinite(y.sum(dtype=torch.float32 if a.dtype is torch.float16 else None).item()):
        return y
    return torch.where(y.isfinite(), y, a.clamp(min=0))


@cache
def _gelu_grad_gains_infinity(onednn: bool) -> bool:
    """Whether PyTorch's derivative of gelu is infinite at infinity: on aarch64 with SVE it is oneDNN's. Elsewhere it is NaN.

    `onednn`, whether PyTorch uses that library, is only the key under which the answer is kept."""
    return bool(aten.gelu_backward(torch.ones(16), torch.full((16,), math.inf)).isinf().any())


def _gelu_grad(g: Array, a: Array, *, tanh: bool) -> Array:
    y = aten.gelu_backward(g, a, approximate=_tanh(tanh))
    if tanh or a.device.type != "cpu" or torch._C._len_torch_dispatch_stack():
        return y
    gains = _gelu_grad_gains_infinity(torch._C._get_mkldnn_enabled())
    return torch.where(a.isinf(), math.nan, y) if gains else y


OWN: dict[str, Callable[..., Any]] = {
    "add_scaled": lambda a, b, scale: torch.add(a, b, alpha=scale),
    "addcmul": lambda a, b, c, value: torch.addcmul(a, b, c, value=value),
    "addcdiv": lambda a, b, c, value: torch.addcdiv(a, b, c, value=value),
    "maximum": _maximum,
    "minimum": _minimum,
    "linear_weight_grad": _weight_grad,
    "pow_grad": _pow_grad,
    "spread": _spread_out,
    "relu_grad": lambda g, y: aten.threshold_backward(g, y, 0),
    "sigmoid_grad": _real_only(aten.sigmoid_backward, lambda g, y: g * y * (1.0 - y)),
    "tanh_grad": _real_only(aten.tanh_backward, lambda g, y: g * (1.0 - y * y)),
    "gelu": _gelu,
    "gelu_grad": _gelu_grad,
    "silu": F.silu,
    "silu_grad": aten.silu_backward,
    "leaky_relu": F.leaky_relu,
    "leaky_relu_grad": lambda g, a, slope: aten.leaky_relu_backward(g, a, slope, False),
    "elu": F.elu,
    "elu_grad": lambda g, a, alpha: aten.elu_backward(g, alpha, 1.0, 1.0, False, a),
    "softplus": F.softplus,
    "softplus_grad": aten.softplus_backward,
    "hardtanh": F.hardtanh,
    "hardtanh_grad": aten.hardtanh_backward,
    "matmul": torch.matmul,
    "linear": _linear,
    "linear_bias_grad": _bias_grad,
    "addmm": _addmm,
    "einsum": lambda *operands, equation: torch.einsum(equation, *operands).to(operands[0].dtype),  # sums of ints are int64
    "sum": _sum,
    "prod": _prod,
    "any": _truth(torch.any),
    "all": _truth(torch.all),
    "var": _spread(torch.var),
    "std": _spread(torch.std),
    "norm": _norm,
    "logsumexp": _logsumexp,
    "reshape": lambda a, *, shape: a.reshape(shape),
    "expand": lambda a, *, shape: a.expand(shape),
    "permute": lambda a, *, axes: a.permute(axes),
    "tril": torch.tril,
    "triu": torch.triu,
    "sort": lambda a, *, axis, descending: tuple(torch.sort(a, dim=axis, descending=descending, stable=True)),
    "topk": lambda a, *, k, axis, largest: tuple(torch.topk(a, k, axis, largest, True)),
    "max_at": _with_places(torch.max),
    "min_at": _with_places(torch.min),
    "median": _with_places(torch.median),
    "mode": _mode,
    "cummax": _met(torch.cummax),
    "cummin": _met(torch.cummin),
    "logcumsumexp": lambda a, *, axis: torch.logcumsumexp(a, axis),
    "igamma": _widened(torch.igamma),
    "igammac": _widened(torch.igammac),
    "polygamma": _polygamma,
    "lcm": _lcm,
    "sparse_matmul": sparse_matmul,
    "special_zeta": torch.special.zeta,
    **{n: _of_degree(getattr(torch.special, n)) for n in dir(torch.special) if "_polynomial_" in n},
    "frexp": lambda a: tuple(torch.frexp(a)),
    "matrix_exp": torch.linalg.matrix_exp,
    "lu_factor": lambda a, *, check: tuple(torch.linalg.lu_factor(a) if check else torch.linalg.lu_factor_ex(a)[:2]),
    "eig": lambda a: tuple(torch.linalg.eig(finite(torch, a))),
    "cholesky_ex": lambda a: tuple(torch.linalg.cholesky_ex(a)),
    "geqrf": lambda a: tuple(torch.geqrf(a)),
    "ldl_factor": lambda a, *, hermitian: tuple(torch.linalg.ldl_factor_ex(a, hermitian=hermitian)),
    "ldl_solve": _ldl_solve,
    "solve_triangular": lambda a, b, *, upper, unit: torch.linalg.solve_triangular(
        a.triu() if upper else a.tril(), b, upper=upper, unitriangular=unit
    ),
    "scatter_reduce": lambda a, index, source, *, axis, reduce: torch.scatter_reduce(a, axis, index, source, reduce),
    "cumsum": lambda a, *, axis: torch.cumsum(a, axis),
    "cumprod": lambda a, *, axis: torch.cumprod(a, axis),
    "searchsorted": lambda edges, values, *, right: torch.searchsorted(edges.contiguous(), values.contiguous(), right=right),
    "gather": lambda a, index, *, axis: torch.gather(a, axis, index),
    "gather_grad": _gather_grad,
    "scatter": lambda a, index, source, *, axis: torch.scatter(a, axis, index, source),
    "scatter_add": lambda a, index, source, *, axis: torch.scatter_add(a, axis, index, source),
    "index_select": lambda a, index, *, axis: torch.index_select(a, axis, index),
    "index_select_grad": _select_grad,
    "index_add": lambda a, index, source, alpha, *, axis: torch.index_add(a, axis, index, source, alpha=alpha),
    "index": lambda a, *places, axes: aten.index(a, _full_index(places, axes, a.ndim)),
    "index_grad": _index_grad,
    "index_put": _index_put,
    "embedding": lambda w, index, *, padding: aten.embedding(w, index),
    "embedding_grad": _embedding_grad,
    "softmax": lambda a, *, axis: aten._softmax(a, axis, False),
    "softmax_grad": lambda g, y, *, axis: aten._softmax_backward_data(g, y, axis, y.dtype),
    "log_softmax": lambda a, *, axis: aten._log_softmax(a, axis, False),
    "log_softmax_grad": lambda g, y, *, axis: aten._log_softmax_backward_data(g, y, axis, y.dtype),
    "layer_norm": layers.layer_norm,
    "layer_norm_grad": layers.layer_norm_grad,
    "add_layer_norm": layers.add_layer_norm,
    "add_layer_norm_grad": layers.add_layer_norm_grad,
    "rms_norm": layers.rms_norm,
    "rms_norm_grad": layers.rms_norm_grad,
    "group_norm": layers.group_norm,
    "group_norm_grad": layers.group_norm_grad,
    "batch_norm_train": layers.batch_norm_train,
    "batch_norm_grad": layers.batch_norm_grad,
    "batch_norm": layers.batch_norm,
    **ctc.KERNELS,
    **recurrent.KERNELS,
    "conv": layers.conv,
    "conv_transpose": layers.conv_transpose,
    "conv_weight_grad": layers.conv_weight_grad,
    "max_pool": layers.max_pool,
    "adaptive_max_pool": layers.adaptive_max,
    "avg_pool": layers.avg_pool,
    "avg_pool_grad": layers.avg_pool_grad,
    "adaptive_avg_pool": layers.adaptive,
    "adaptive_avg_pool_grad": layers.adaptive_grad,
    "attention": steps.attention,
    "attention_grad": steps.attention_grad,
    "cross_entropy": steps.cross_entropy,
    "cross_entropy_grad": steps.cross_entropy_grad,
    "adam": steps.adam,
    "sgd": steps.sgd,
    "sgd_momentum": steps.sgd_momentum,
    "sgd_rows": steps.sgd_rows,
}
