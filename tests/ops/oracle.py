"""PyTorch's public spelling of each row, where it is not simply the row's name: inputs and statics as the row has them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from gt.ops import Row
from gt.spec import DTYPES
from gt.worker.engine.torch.dtypes import TORCH


@contextmanager
def derivatives() -> Iterator[None]:
    """PyTorch's autograd within a test. A derivative that PyTorch got with 2.12 or 2.13 ends the test with an older one, after
    all that was compared before."""
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as none:
        if torch.__version__ < "2.13" and re.search(r"derivative for .* is not implemented", str(none)):
            pytest.skip(f"PyTorch {torch.__version__}: {none}")
        raise


def _cut(take: Any, starts: Any) -> Any:
    return [range(s, s + n * step, step) if n >= 0 else s for (n, step), s in zip(take, starts)]


def _slice(a: Any, *starts: int, take: Any) -> Any:
    for axis, places in reversed(list(enumerate(_cut(take, starts)))):
        if isinstance(places, int):
            a = a.select(axis, places)
        else:
            a = a.index_select(axis, torch.tensor(list(places), dtype=torch.int64))
    return a


def _slice_put(a: Any, value: Any, *starts: int, take: Any) -> Any:
    """Through a tensor of positions, so that no slice of PyTorch's is needed."""
    where = _slice(torch.arange(a.numel()).reshape(a.shape), *starts, take=take)
    value = torch.as_tensor(value, dtype=a.dtype).expand(where.shape)
    return a.reshape(-1).index_put((where.reshape(-1),), value.reshape(-1)).reshape(a.shape)


def _gelu(a: torch.Tensor, *, tanh: bool) -> torch.Tensor:
    """In float64, with its limit, zero, at minus infinity, where PyTorch's exact form is 0 times infinity."""
    found = F.gelu(a.double(), approximate="tanh" if tanh else "none")
    return torch.where(a == -math.inf, -0.0, found).to(a.dtype)


def _norm_parts(parts: Any) -> Any:
    return (*parts, None, None)[:2]


def _layer_norm(a: Any, eps: float, *parts: Any, ndim: int) -> Any:
    return F.layer_norm(a, a.shape[-ndim:], *_norm_parts(parts), eps)


def _add_layer_norm(a: Any, b: Any, eps: float, *parts: Any, ndim: int) -> Any:
    return a + b, _layer_norm(a + b, eps, *parts, ndim=ndim)


def _batch_norm_train(a: Any, eps: float, *parts: Any) -> Any:
    return F.batch_norm(a, None, None, *_norm_parts(parts), True, 0.1, eps)


def _attention(q: Any, k: Any, v: Any, scale: float, *mask: Any, causal: bool) -> Any:
    gqa = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    mask = mask[0] if mask else None
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=gqa)


def _cross_entropy(a: Any, t: Any, smoothing: float, *weight: Any, ignore: int, reduce: bool) -> Any:
    reduction = "sum" if reduce else "none"
    return F.cross_entropy(
        a, t, weight[0] if weight else None, ignore_index=ignore, reduction=reduction, label_smoothing=smoothing
    )


def _ctc(p: Any, t: Any, steps: Any, words: Any, *, blank: int, zero_infinity: bool, normalised: bool) -> Any:
    """PyTorch adds the gradient of a normalisation to the loss's own: exp(p), in the steps of each sequence."""
    loss, chances = F.ctc_loss(p, t, steps, words, blank, "none", zero_infinity), p.exp()
    within = torch.arange(len(p)).unsqueeze(1) < steps
    return loss if normalised else loss - ((chances - chances.detach()).sum(2) * within).sum(0)


def _conv(a: Any, w: Any, *bias: Any, **s: Any) -> Any:
    return (F.conv1d if a.ndim == 3 else F.conv2d)(a, w, *bias, **s)


def _conv_transpose(a: Any, w: Any, *bias: Any, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    least = [(n - 1) * s - 2 * p + e * (k - 1) + 1
             for n, s, p, e, k in zip(a.shape[2:], stride, padding, dilation, w.shape[2:])]  # fmt: skip
    extra = [d - m for d, m in zip(size, least)]
    function = F.conv_transpose1d if a.ndim == 3 else F.conv_transpose2d
    return function(a, w, bias[0] if bias else None, stride, padding, extra, groups, dilation)


def _max_pool(a: Any, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Any:
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    return function(a, kernel, stride, padding, dilation, ceil, True)


def _avg_pool(a: Any, *, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: int) -> Any:
    if len(kernel) == 1:
        return F.avg_pool1d(a, kernel, stride, padding, ceil, padded)
    return (F.avg_pool2d if len(kernel) == 2 else F.avg_pool3d)(a, kernel, stride, padding, ceil, padded, divisor or None)


def _adaptive(a: Any, *, kernel: Any) -> Any:
    return (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)[len(kernel) - 1](a, kernel)


def _adaptive_max(a: Any, *, kernel: Any) -> Any:
    return (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d)[len(kernel) - 1](a, kernel, True)


def _prod(a: Any, *, axis: Any, keepdims: bool) -> Any:
    for i in sorted(axis, reverse=True):
        a = a.prod(i, keepdims)
    return a


def _index(places: Any, axes: Any, ndim: int) -> Any:
    where = dict(zip(axes, places))
    return tuple(where.get(i, slice(None)) for i in range(ndim))


def _index_put(a: Any, value: Any, *places: Any, axes: Any, accumulate: bool) -> Any:
    a = a.clone()
    index = _index(places, axes, a.ndim)
    if accumulate:
        flat = torch.arange(a.numel()).reshape(a.shape)[index]
        return a.reshape(-1).index_add(0, flat.reshape(-1), value.expand(flat.shape).reshape(-1)).reshape(a.shape)
    a[index] = value
    return a


def _pad(a: Any, value: float, *, widths: Any) -> Any:
    return F.pad(a, [w for pair in reversed(widths) for w in pair], value=value)


def _step(optimizer: Any, p: Any, g: Any, state: dict) -> dict:
    p.grad = g
    optimizer.state[p].update(state)
    optimizer.step()
    return optimizer.state[p]


def _adam(p: Any, g: Any, m: Any, v: Any, lr: float, b1: float, b2: float, eps: float, decay: float, step: int,
          *top: Any, decoupled: bool, maximize: bool) -> Any:  # fmt: skip
    p = p.clone().requires_grad_()
    cls = torch.optim.AdamW if decoupled else torch.optim.Adam
    o = cls([p], lr, (b1, b2), eps, decay, bool(top), maximize=maximize, foreach=False)
    state = {"step": torch.tensor(step - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    if top:
        state["max_exp_avg_sq"] = top[0].clone()
    s = _step(o, p, g, state)
    return p.detach(), s["exp_avg"], s["exp_avg_sq"], *([s["max_exp_avg_sq"]] if top else [])


def _sgd(p: Any, g: Any, lr: float, decay: float, *, maximize: bool) -> Any:
    p = p.clone().requires_grad_()
    _step(torch.optim.SGD([p], lr, weight_decay=decay, maximize=maximize, foreach=False), p, g, {})
    return p.detach()


def _sgd_rows(p: Any, rows: Any, index: Any, lr: float, *, maximize: bool) -> Any:
    p = p.clone().requires_grad_()
    with warnings.catch_warnings():  # PyTorch 2.11 warns that checks are off, though they are asked for
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        g = torch.sparse_coo_tensor(index.reshape(1, -1), rows, p.shape, check_invariants=True)
    _step(torch.optim.SGD([p], lr, maximize=maximize, foreach=False), p, g, {})
    return p.detach()


def _sgd_momentum(p: Any, g: Any, b: Any, lr: float, decay: float, momentum: float, dampening: float, *, nesterov: bool,
                  maximize: bool) -> Any:  # fmt: skip
    p = p.clone().requires_grad_()
    o = torch.optim.SGD([p], lr, momentum, dampening, decay, nesterov, maximize=maximize, foreach=False)
    s = _step(o, p, g, {"momentum_buffer": b.clone()})
    return p.detach(), s["momentum_buffer"]


def _rmsprop(p: Any, g: Any, sq: Any, lr: float, alpha: float, eps: float, decay: float, momentum: float, *more: Any,
             centered: bool, maximize: bool) -> Any:  # fmt: skip
    p = p.clone().requires_grad_()
    o = torch.optim.RMSprop([p], lr, alpha, eps, decay, momentum, centered, maximize=maximize, foreach=False)
    names = ["grad_avg"] * centered + ["momentum_buffer"] * (momentum > 0)
    state = {"step": torch.tensor(2.0), "square_avg": sq.clone(), **{n: t.clone() for n, t in zip(names, more)}}
    s = _step(o, p, g, state)
    return p.detach(), s["square_avg"], *(s[n] for n in names)


def _adagrad(p: Any, g: Any, total: Any, lr: float, rate_decay: float, decay: float, eps: float, step: int, *,
             maximize: bool) -> Any:  # fmt: skip
    p = p.clone().requires_grad_()
    o = torch.optim.Adagrad([p], lr, rate_decay, decay, eps=eps, maximize=maximize, foreach=False)
    s = _step(o, p, g, {"step": torch.tensor(step - 1.0), "sum": total.clone()})
    return p.detach(), s["sum"]


def _update(make: Any, tensors: tuple[str, ...], settings: int) -> Any:
    """PyTorch's step of an optimizer that `make(params, numbers, statics)` gives, for a row whose operands are the parameter,
    the gradient, these tensors of its state, numbers, the step count if `settings` leaves one, and further state."""

    def run(p: Any, g: Any, *operands: Any, **statics: Any) -> Any:
        p = p.clone().requires_grad_()
        state = {n: t.clone() for n, t in zip(tensors, [o for o in operands if isinstance(o, torch.Tensor)])}
        numbers = [o for o in operands if not isinstance(o, torch.Tensor)]
        count = float(numbers[settings] - 1) if len(numbers) > settings else 2.0
        s = _step(make([p], numbers, statics), p, g, {"step": torch.tensor(count), **state})
        return p.detach(), *(s[n] for n in tensors)

    return run


def _nadam(p: Any, g: Any, m: Any, v: Any, product: Any, *numbers: Any, decoupled: bool, maximize: bool) -> Any:
    """PyTorch multiplies the product first, GT in an instruction of its own."""
    lr, b1, b2, eps, decay, momentum_decay, step = numbers
    p = p.clone().requires_grad_()
    o = torch.optim.NAdam([p], lr, (b1, b2), eps, decay, momentum_decay, decoupled, maximize=maximize, foreach=False)
    before = product / (b1 * (1.0 - 0.5 * 0.96 ** (step * momentum_decay)))
    s = _step(o, p, g, {"step": torch.tensor(step - 1.0), "mu_product": before, "exp_avg": m.clone(), "exp_avg_sq": v.clone()})
    return p.detach(), s["exp_avg"], s["exp_avg_sq"]


def _asgd(p: Any, g: Any, mean: Any, eta: Any, mu: Any, lambd: float, decay: float, *, maximize: bool) -> Any:
    p = p.clone().requires_grad_()
    o = torch.optim.ASGD([p], 0.1, lambd, weight_decay=decay, maximize=maximize, foreach=False)
    s = _step(o, p, g, {"step": torch.tensor(2.0), "eta": eta.clone(), "mu": mu.clone(), "ax": mean.clone()})
    return p.detach(), s["ax"]


def _asgd_rates(eta: Any, mu: Any, lr: float, lambd: float, alpha: float, t0: float, step: int) -> Any:
    """PyTorch's optimizer has these in float32 only: its formula, in the dtype asked for. tests/nn compares with it."""
    return torch.full_like(eta, lr / (1 + lambd * lr * step) ** alpha), torch.full_like(mu, 1 / max(1, step - t0))


def _polygamma(a: Any, *, n: int) -> Any:
    """torch.polygamma(1, a) has only nine digits; PyTorch's zeta function has them all."""
    sign = (-1.0) ** (n + 1) * math.factorial(n)
    return torch.digamma(a) if n == 0 else (sign * torch.special.zeta(n + 1.0, a.float() if a.itemsize == 2 else a)).to(a.dtype)


def _pivot_order(pivots: Any, *, rows: int) -> Any:
    """PyTorch gives the exchange of rows as a matrix: row i of the product is column i's."""
    shape = (*pivots.shape[:-1], rows, pivots.shape[-1])
    p, _, _ = torch.lu_unpack(torch.zeros(shape), pivots.contiguous(), unpack_data=False)
    return p.argmax(-2)


def _bincount(a: Any, *weight: Any, size: int) -> Any:
    return torch.bincount(a, *weight, minlength=size)


def _spread(g, *scale, shape, axis, keepdims):
    """As PyTorch differentiates a sum of this, weighted."""
    a = torch.zeros(shape, dtype=g.dtype, requires_grad=True)
    (a.sum(dim=axis, keepdim=keepdims) if shape else a.sum()).mul(scale[0] if scale else 1.0).backward(g)
    return a.grad


def _sparse_matmul(rows: Any, columns: Any, values: Any, dense: Any, *, n: int) -> Any:
    return values.new_zeros(n, dense.shape[0]).index_put((rows, columns), values, accumulate=True) @ dense


ORACLE: dict[str, Callable[..., Any]] = {
    "spread": _spread,
    "copy": torch.clone,
    "complex": lambda a, b: torch.complex(a, b.expand(a.shape)),
    "conj": torch.conj_physical,
    "real_part": torch.real,
    "imag_part": torch.imag,
    "direction": torch.sgn,
    "nextafter": torch.nextafter,
    "fft_complex": lambda a, *, axes, forward: (
        torch.fft.fftn(a, dim=axes) if forward else torch.fft.ifftn(a, None, axes, "forward")
    ),
    "fft_half": lambda a, *, axes: torch.fft.rfftn(a, dim=axes),
    "fft_real": lambda a, *, axes, n: torch.fft.irfftn(a, [*(a.shape[i] for i in axes[:-1]), n], axes, "forward"),
    "add_scaled": lambda a, b, s: torch.add(a, b, alpha=s),
    "addcmul": lambda a, b, c, v: torch.addcmul(a, b, c, value=v),
    "addcdiv": lambda a, b, c, v: torch.addcdiv(a, b, c, value=v),
    "cast": lambda a, *, dtype: (a.real if a.is_complex() and not DTYPES[dtype].is_complex else a).to(TORCH[DTYPES[dtype]]),
    "maximum": lambda a, b: torch.maximum(a, b) if isinstance(b, torch.Tensor) else a.clamp(min=b),
    "minimum": lambda a, b: torch.minimum(a, b) if isinstance(b, torch.Tensor) else a.clamp(max=b),
    # In float64, since PyTorch's float32 one on x86-64 is oneDNN's, which is NaN at infinity.
    "gelu": _gelu,
    **{n: getattr(F, n) for n in ("silu", "leaky_relu", "elu", "softplus", "hardtanh", "linear")},
    "addmm": lambda c, a, b, beta, alpha: (torch.addmm if a.ndim == 2 else torch.baddbmm)(c, a, b, beta=beta, alpha=alpha),
    "matmul": torch.matmul,
    "einsum": lambda *x, equation: torch.einsum(equation, *x),
    "sum": lambda a, *, axis, keepdims: a.sum(axis, keepdims),
    "scaled_sum": lambda a, *, axis, keepdims, scale: a.sum(axis, keepdims) * scale,
    "full_like": lambda a, value, *, dtype: torch.full_like(a, value, dtype=TORCH[DTYPES[dtype]]),
    "redistribute": lambda a: a.clone(),
    "mean": lambda a, *, axis, keepdims: a.mean(axis, keepdims),
    "amax": lambda a, *, axis, keepdims: a.amax(axis, keepdims),
    "amin": lambda a, *, axis, keepdims: a.amin(axis, keepdims),
    "any": lambda a, *, axis, keepdims: torch.any(a, axis, keepdims),
    "all": lambda a, *, axis, keepdims: torch.all(a, axis, keepdims),
    "prod": _prod,
    "var": lambda a, c, *, axis, keepdims: a.var(axis, correction=c, keepdim=keepdims),
    "std": lambda a, c, *, axis, keepdims: a.std(axis, correction=c, keepdim=keepdims),
    "norm": lambda a, *, order, axis, keepdims: torch.linalg.vector_norm(a, order, axis, keepdims),
    "logsumexp": lambda a, *, axis, keepdims: torch.logsumexp(a, axis, keepdims),
    "argmax": lambda a, *, axis, keepdims: torch.argmax(a, axis[0], keepdims),
    "argmin": lambda a, *, axis, keepdims: torch.argmin(a, axis[0], keepdims),
    "sort": lambda a, *, axis, descending: torch.sort(a, axis, descending),
    "topk": lambda a, *, k, axis, largest: torch.topk(a, k, axis, largest),
    "max_at": lambda a, *, axis, keepdims: torch.max(a, axis, keepdims),
    "min_at": lambda a, *, axis, keepdims: torch.min(a, axis, keepdims),
    "median": lambda a, *, axis, keepdims: torch.median(a, axis, keepdims),
    "mode": lambda a, *, axis, keepdims: torch.mode(a, axis, keepdims),
    "cummax": lambda a, *, axis: torch.cummax(a, axis),
    "cummin": lambda a, *, axis: torch.cummin(a, axis),
    "logcumsumexp": lambda a, *, axis: torch.logcumsumexp(a, axis),
    "polygamma": _polygamma,
    "special_zeta": torch.special.zeta,
    "sparse_matmul": _sparse_matmul,
    "frexp": torch.frexp,
    "matrix_exp": torch.linalg.matrix_exp,
    "lu_factor": lambda a, *, check: torch.linalg.lu_factor(a),
    "eig": torch.linalg.eig,
    "pinv": lambda a, atol, rtol, *, hermitian: torch.linalg.pinv(a, atol=atol, rtol=rtol, hermitian=hermitian),
    "cholesky_ex": torch.linalg.cholesky_ex,
    "geqrf": torch.geqrf,
    "ldl_factor": lambda a, *, hermitian: torch.linalg.ldl_factor_ex(a, hermitian=hermitian),
    "ldl_solve": lambda a, pivots, b, *, hermitian: torch.linalg.ldl_solve(a, pivots, b, hermitian=hermitian),
    "pivot_order": _pivot_order,
    "scatter_reduce": lambda a, i, s, *, axis, reduce: torch.scatter_reduce(a, axis, i, s, reduce),
    "cumsum": lambda a, *, axis: torch.cumsum(a, axis),
    "cumprod": lambda a, *, axis: torch.cumprod(a, axis),
    "searchsorted": lambda e, v, *, right: torch.searchsorted(e, v, right=right),
    "bincount": _bincount,
    "reshape": lambda a, *, shape: a.reshape(shape),
    "permute": lambda a, *, axes: a.permute(axes),
    "expand": lambda a, *, shape: a.expand(shape),
    "cat": lambda *parts, axis: torch.cat(parts, axis),
    "flip": lambda a, *, axes: a.flip(axes),
    "roll": lambda a, *shifts, axes: a.roll(shifts, axes),
    "pad": _pad,
    "tril": torch.tril,
    "triu": torch.triu,
    "diagonal": lambda a, *, offset, axes: torch.diagonal(a, offset, *axes),
    "slice": _slice,
    "slice_put": _slice_put,
    "gather": lambda a, i, *, axis: torch.gather(a, axis, i),
    "scatter": lambda a, i, s, *, axis: torch.scatter(a, axis, i, s),
    "scatter_add": lambda a, i, s, *, axis: torch.scatter_add(a, axis, i, s),
    "index_select": lambda a, i, *, axis: torch.index_select(a, axis, i),
    "index_add": lambda a, i, s, alpha, *, axis: torch.index_add(a, axis, i, s, alpha=alpha),
    "index": lambda a, *places, axes: a[_index(places, axes, a.ndim)],
    "index_put": _index_put,
    "embedding": lambda w, i, *, padding: F.embedding(i, w, padding if padding >= 0 else None),
    "softmax": lambda a, *, axis: F.softmax(a, axis),
    "log_softmax": lambda a, *, axis: F.log_softmax(a, axis),
    "layer_norm": _layer_norm,
    "add_layer_norm": _add_layer_norm,
    "rms_norm": lambda a, eps, *w, ndim: F.rms_norm(a, a.shape[-ndim:], *w, eps=eps),
    "group_norm": lambda a, eps, *parts, groups: F.group_norm(a, groups, *_norm_parts(parts), eps),
    "batch_norm_train": _batch_norm_train,
    "batch_norm": lambda a, m, v, eps, *parts: F.batch_norm(a, m, v, *_norm_parts(parts), False, 0.1, eps),
    "attention": _attention,
    "cross_entropy": _cross_entropy,
    "ctc": _ctc,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "adaptive_avg_pool": _adaptive,
    "adaptive_max_pool": _adaptive_max,
    "clone": torch.clone,
    "bitcast": lambda a, *, old, new: a.contiguous().view(TORCH[DTYPES[new]]),
    "inverse": torch.linalg.inv,
    "det": torch.linalg.det,
    "slogdet": torch.linalg.slogdet,
    "solve": lambda a, b, *, vector: torch.linalg.solve(a, b),
    "solve_triangular": lambda a, b, *, upper, unit: torch.linalg.solve_triangular(
        a.triu() if upper else a.tril(), b, upper=upper, unitriangular=unit
    ),
    "cholesky": torch.linalg.cholesky,
    "qr": lambda a, *, complete: torch.linalg.qr(a, "complete" if complete else "reduced"),
    "svd": lambda a, *, full: torch.linalg.svd(a, full),
    "eigh": torch.linalg.eigh,
    "adam": _adam,
    "sgd": _sgd,
    "sgd_momentum": _sgd_momentum,
    "sgd_rows": _sgd_rows,
    "rmsprop": _rmsprop,
    "adagrad": _adagrad,
    "adadelta": _update(lambda p, n, s: torch.optim.Adadelta(p, *n[:4], foreach=False, **s), ("square_avg", "acc_delta"), 4),
    "adamax": _update(
        lambda p, n, s: torch.optim.Adamax(p, n[0], (n[1], n[2]), n[3], n[4], foreach=False, **s), ("exp_avg", "exp_inf"), 5
    ),
    "radam": _update(
        lambda p, n, s: torch.optim.RAdam(
            p, n[0], (n[1], n[2]), n[3], n[4], s["decoupled"], foreach=False, maximize=s["maximize"]
        ),
        ("exp_avg", "exp_avg_sq"),
        5,
    ),
    "rprop": _update(
        lambda p, n, s: torch.optim.Rprop(p, 0.1, (n[0], n[1]), (n[2], n[3]), foreach=False, **s), ("prev", "step_size"), 4
    ),
    "adafactor": lambda p, g, *o, **s: _update(
        lambda p, n, s: torch.optim.Adafactor(
            p, n[0], n[1], (s["eps1"], s["eps2"]), n[2], n[3], foreach=False, maximize=s["maximize"]
        ),
        ("row_var", "col_var") if p.ndim > 1 else ("variance",),
        4,
    )(p, g, *o, **s),
    "nadam": _nadam,
    "nadam_product": lambda product, b1, b2, decay, step: product * (b1 * (1.0 - 0.5 * 0.96 ** (step * decay))),
    "asgd": _asgd,
    "asgd_rates": _asgd_rates,
}
# PyTorch has no such function: creation of tensors, and GT's own random numbers; Lion is checked by hand, `recurrent`
# against torch.nn's layers in tests/nn/test_recurrent.py.
ALONE = {"full", "full_complex", "iota", "eye", "uniform", "normal", "integers", "dropout", "lion", "recurrent"}


def oracle(row: Row) -> Callable[..., Any] | None:
    found = ORACLE.get(row.name)
    if found is None and row.pointwise:
        found = getattr(torch, row.name, None)
    if found is None and row.family in ("bessel", "special"):
        found = getattr(torch.special, row.name, None)
    return found
