"""PyTorch's kernels for training steps: attention, cross-entropy, updates."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from gt.small import NATIVE
from gt.worker.engine.torch import aten

Array = torch.Tensor
NUMBERS = (float, int, bool)  # asked first, as PyTorch answers isinstance slowly
FUSED = (torch.float32, torch.float64)  # dtypes in which the fused step computes
FUSED_ON = ("cpu", "cuda")
ALIGNED = 16  # elements: where rows of a mask begin


def _repeated(q: Array, k: Array) -> Array:
    """Keys or values for each head of the queries."""
    return k if q.ndim < 3 or q.shape[-3] == k.shape[-3] else k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)


def _bias(q: Array, k: Array, mask: tuple[Array, ...]) -> Array | None:
    """The mask as an additive bias with four axes. A GPU's kernel requires rows that begin at multiples of 16 elements."""
    if not mask:
        return None
    m, keys = mask[0], k.shape[-2]
    if m.dtype is torch.bool:
        m = torch.zeros(m.shape, dtype=q.dtype, device=q.device).masked_fill_(~m, float("-inf"))
    m = m.expand(*m.shape[:-1], keys)
    if m.is_cuda and any(begin % ALIGNED for begin in (keys, m.storage_offset(), *m.stride()[:-1])):
        m = torch.nn.functional.pad(m, (0, -keys % ALIGNED))[..., :keys]
    return _packed(m).expand(*q.shape[:-1], keys)


def _packed(a: Array) -> Array:
    """The kernel requires a contiguous last axis."""
    return a if a.stride(-1) == 1 else a.contiguous()


def _fused(q: Array, k: Array, v: Array, mask: tuple[Array, ...], causal: bool) -> str:
    """The name of PyTorch's fused kernel for these operands, which does not store the scores, or ""."""
    if q.ndim != 4 or q.shape[-1] != v.shape[-1] or not q.numel() or not k.numel():
        return ""
    if q.device.type == "cpu":
        return "cpu"
    whole = q.shape[-1] * q.dtype.itemsize % 16 == 0
    fits = q.dtype.itemsize == 2 and q.shape[-1] <= 256 and (q.shape[-2] == k.shape[-2] or not causal)
    if whole and fits and not mask:
        return "flash"
    return "efficient" if whole and q.dtype is not torch.float64 else ""


def _run_fused(name: str, q: Array, k: Array, v: Array, bias: Array | None, causal: bool, scale: float) -> tuple:
    if name == "cpu":
        run = aten._scaled_dot_product_flash_attention_for_cpu
        return run(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    if name == "flash":
        return tuple(aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)[:2])
    y, lse, _, _ = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)
    return y, lse[..., : q.shape[-2]]


def _run_fused_grad(
    name: str, g: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, bias: Array | None, causal: bool, scale: float
) -> tuple:
    if name == "cpu":
        run = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return run(g, q, k, v, y, lse, 0.0, causal, attn_mask=bias, scale=scale)
    none = torch.empty((), dtype=torch.int64, device=q.device)  # in place of a random state, which is not read without dropout
    if name == "flash":
        return aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, y, lse, None, None, q.shape[-2], k.shape[-2], 0.0, causal, none, none, scale=scale
        )
    if lse.shape[-1] % 32:
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=float("inf"))  # the kernel reads 32 at a time
    g, q, k, v, y = (a.transpose(1, 2) for a in (g, q, k, v, y))  # heads inside rows
    found = aten._efficient_attention_backward(
        g, q, k, v, bias, y.contiguous(), None, None, q.shape[1], k.shape[1], lse, 0.0, none, none, int(causal), False,
        scale=scale, shared_storage_dqdkdv=q.shape == k.shape,
    )  # fmt: skip
    return tuple(a.transpose(1, 2) for a in found[:3])


def _scores(q: Array, k: Array, scale: float, mask: tuple[Array, ...], causal: bool) -> Array:
    s = q @ k.mT * scale
    if causal:
        mask = (torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).tril(),)
    if not mask:
        return s
    return s.masked_fill(~mask[0], float("-inf")) if mask[0].dtype is torch.bool else s + mask[0]


def attention(q: Array, k: Array, v: Array, scale: float, *mask: Array, causal: bool) -> tuple[Array, Array]:
    k, v = _repeated(q, k), _repeated(q, v)
    fused = _fused(q, k, v, mask, causal)
    if fused:
        q, k, v = map(_packed, (q, k, v))
        return _run_fused(fused, q, k, v, _bias(q, k, mask), causal, scale)
    wide = torch.float32 if q.dtype.itemsize == 2 else q.dtype
    s = _scores(q, k, scale, mask, causal).to(wide)
    lse = torch.logsumexp(s, -1)
    lse = lse.masked_fill_(lse == float("-inf"), 0.0)  # a fully masked query
    p = torch.exp(s - lse.unsqueeze(-1))
    return p.to(q.dtype) @ v, lse


def attention_grad(
    g: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, scale: float, *mask: Array, causal: bool
) -> tuple[Array, Array, Array]:
    wk, wv = _repeated(q, k), _repeated(q, v)
    fused = _fused(q, wk, wv, mask, causal)
    if fused:
        g, q, wk, wv, y = map(_packed, (g, q, wk, wv, y))
        gq, gk, gv = _run_fused_grad(fused, g, q, wk, wv, y, lse.contiguous(), _bias(q, k, mask), causal, scale)
    else:
        s = _scores(q, wk, scale, mask, causal).to(lse.dtype)
        p = torch.exp(s - lse.unsqueeze(-1)).to(q.dtype)
        gs = p * (g @ wv.mT - (g * y).sum(-1, keepdim=True)) * scale
        gq, gk, gv = gs @ wk, gs.mT @ q, p.mT @ g
    if wk.shape == k.shape:
        return gq, gk, gv
    times = q.shape[-3] // k.shape[-3]
    return gq, *(t.reshape(*k.shape[:-2], times, *t.shape[-2:]).sum(-3) for t in (gk, gv))


def cross_entropy(
    a: Array, target: Array, smoothing: float, *weight: Array, ignore: int, reduce: bool
) -> tuple[Array, Array, Array]:
    axis = 1 if a.ndim > 1 else 0
    logp = aten._log_softmax(a, axis, False)
    w = weight[0] if weight else None
    if a.ndim == 2 and not smoothing and reduce:
        return *aten.nll_loss_forward(logp, target, w, 2, ignore), logp
    counted = target != ignore
    safe = torch.where(counted, target, 0)
    count = counted.to(a.dtype) if w is None else w[safe] * counted
    loss = logp.gather(axis, safe.unsqueeze(axis)).squeeze(axis).neg_() * count
    loss = torch.where(count == 0, 0.0, loss)
    if smoothing:
        shared = logp.sum(axis) if w is None else torch.tensordot(logp.movedim(axis, -1), w, 1)
        loss = loss * (1.0 - smoothing) - shared * counted * (smoothing / a.shape[axis])
    return (loss.sum(), count.sum(), logp) if reduce else (loss, count, logp)


def _check_classes(target: Array, classes: int, ignore: int) -> None:
    """PyTorch's gradient does not check class numbers on a CPU, and writes where they point."""
    low, high = (int(n) for n in torch.aminmax(target))
    if (low < 0 or high >= classes) and bool(((target != ignore) & ((target < 0) | (target >= classes))).any()):
        raise IndexError(f"class numbers {low} to {high} are out of range for {classes} classes")


def cross_entropy_grad(g: Array, logp: Array, target: Array, smoothing: float, *weight: Array, ignore: int) -> Array:
    axis = 1 if logp.ndim > 1 else 0
    if logp.ndim == 2 and not smoothing and logp.numel():
        w = weight[0] if weight else None
        if logp.device.type == "cpu" and not torch._C._len_torch_dispatch_stack():
            _check_classes(target, logp.shape[1], ignore)
        slope = aten.nll_loss_backward(g, logp, target, w, 0 if g.ndim else 2, ignore, g if not g.ndim else g.sum())
        return aten._log_softmax_backward_data(slope, logp, 1, logp.dtype)
    classes = logp.shape[axis]
    counted = (target != ignore).unsqueeze(axis)
    safe = torch.where(counted, target.unsqueeze(axis), 0)
    scale = torch.where(counted, g.unsqueeze(axis) if g.ndim else g, 0.0)
    hit = weight[0][safe] * (1.0 - smoothing) if weight else 1.0 - smoothing
    rest = smoothing / classes
    found = logp.exp().mul_(scale * (hit + rest * (weight[0].sum() if weight else classes)))
    if smoothing:
        found -= scale * rest * (weight[0].reshape(-1, *[1] * (logp.ndim - 1 - axis)) if weight else 1.0)
    return found.scatter_add_(axis, safe, scale * -hit)


def adam(
    p: Array, g: Array, m: Array, v: Array, lr: float, b1: float, b2: float, eps: float, decay: float, step: int,
    *top: Array, decoupled: bool, maximize: bool,
) -> tuple[Array, ...]:  # fmt: skip
    """PyTorch's fused step, which writes in place, on copies."""
    state = [_dense(t) for t in (p, m, v, *top)]
    call = (state[0], g, state[1], state[2], lr, b1, b2, eps, decay, step, *state[3:])
    return adam_in_place([call], decoupled=decoupled, maximize=maximize)[0]


def adam_in_place(calls: list[tuple], *, decoupled: bool, maximize: bool) -> list[tuple[Array, ...]]:
    """Many steps at once, in place on parameters and their state. Numbers may be 0-d tensors."""
    run = torch._fused_adamw_ if decoupled else torch._fused_adam_
    for same in _alike(calls, slice(4, 10)):
        lr, b1, b2, eps, decay, step = same[0][4:10]
        p, g, m, v, *top = (list(x) for x in zip(*[(*c[:4], *c[10:]) for c in same]))
        at = p[0].device
        count = step.to(torch.float32) if isinstance(step, Array) else torch.full((), float(step), device=at)
        run(p, _as_laid_out(p, g), m, v, top[0] if top else [], [count] * len(p),
            lr=lr.to(torch.float32) if isinstance(lr, Array) else lr, beta1=b1, beta2=b2, weight_decay=decay, eps=eps,
            amsgrad=bool(top), maximize=maximize)  # fmt: skip
    return [(c[0], c[2], c[3], *c[10:]) for c in calls]


def sgd(p: Array, g: Array, lr: Any, decay: Any, *, maximize: bool) -> Array:
    """SGD without momentum in one pass over memory; with 0-d tensors as numbers in two."""
    if _is_fused([p], lr, decay):
        return sgd_in_place([(_dense(p), g, lr, decay)], maximize=maximize)[0][0]
    if isinstance(lr, Array) or isinstance(decay, Array):
        g = -g if maximize else g
        return p - (g + p * decay) * lr
    if decay:
        g, maximize = torch.add(-g if maximize else g, p, alpha=decay), False
    return torch.add(p, g, alpha=lr if maximize else -lr)


def sgd_in_place(calls: list[tuple], *, maximize: bool) -> list[tuple[Array, ...]]:
    """Many steps of SGD without momentum at once, in place on the parameters."""
    for same in _alike(calls, slice(2, None)):
        lr, decay = same[0][2:4]
        p, g = ([c[i] for c in same] for i in (0, 1))
        if _is_fused(p, lr, decay):
            _fused_sgd(p, g, [], lr, decay, 0.0, 0.0, False, maximize)
        else:
            _descend(p, _decayed(p, g, decay, maximize), lr)
    return [(c[0],) for c in calls]


def sgd_rows(p: Array, rows: Array, index: Array, lr: float, *, maximize: bool) -> Array:
    return sgd_rows_in_place([(_dense(p), rows, index, lr)], maximize=maximize)[0][0]


def sgd_rows_in_place(calls: list[tuple], *, maximize: bool) -> list[tuple[Array, ...]]:
    """Many steps of SGD on some rows of a table, in place."""
    for p, rows, index, lr in calls:
        if isinstance(lr, Array):
            rows, lr = rows * _narrow(lr, rows), 1.0
        if not _add_rows(p, rows, index, lr if maximize else -lr):
            p.index_add_(0, index.reshape(-1), rows, alpha=lr if maximize else -lr)
    return [(call[0],) for call in calls]


def _add_rows(p: Array, rows: Array, index: Array, scale: float) -> bool:
    """Whether rows were added in C, which PyTorch takes several times as long for. A place outside of the table, and its error,
    is left to PyTorch, as is a call that a compiler traces."""
    if NATIVE is None or not p.is_cpu or p.dtype is not torch.float32 or not p.numel() or index.dtype is not torch.int64:
        return False
    if torch._C._len_torch_dispatch_stack():
        return False
    if not (p.is_contiguous() and rows.is_contiguous() and index.is_contiguous()) or rows.is_neg() or p.is_neg():
        return False
    count, width = index.numel(), p.numel() // p.shape[0]
    if rows.dtype is not p.dtype or rows.numel() != count * width:
        return False
    places = p.data_ptr(), p.shape[0], width, index.data_ptr(), count, rows.data_ptr()
    return bool(NATIVE.add_rows(*places, scale))


def sgd_momentum_in_place(calls: list[tuple], *, nesterov: bool, maximize: bool) -> list[tuple[Array, ...]]:
    """Many steps with momentum at once, in place on parameters and their buffers."""
    for same in _alike(calls, slice(3, None)):
        lr, decay, momentum, dampening = same[0][3:7]
        p, g, buffer = ([c[i] for c in same] for i in (0, 1, 2))
        if _is_fused(p, lr, decay, momentum, dampening):
            _fused_sgd(p, g, buffer, lr, decay, momentum, dampening, nesterov, maximize)
            continue
        g = _decayed(p, g, decay, maximize)
        torch._foreach_mul_(buffer, _narrow(momentum, buffer[0]))
        _descend(buffer, g, dampening - 1.0)
        _descend(p, _plus(g, buffer, momentum) if nesterov else buffer, lr)
    return [(c[0], c[2]) for c in calls]


def sgd_momentum(p: Array, g: Array, buffer: Array, *numbers: float, nesterov: bool, maximize: bool) -> tuple[Array, ...]:
    return sgd_momentum_in_place([(_dense(p), g, _dense(buffer), *numbers)], nesterov=nesterov, maximize=maximize)[0]


def _is_fused(p: list[Array], lr: Any, *numbers: Any) -> bool:
    """Whether PyTorch's fused step takes these: one call for all, where `torch._foreach_*` on a CPU starts a kernel for each
    tensor (62 small ones with momentum and decay: 0.11 ms against 0.84), and on a GPU goes through memory several times."""
    at = p[0].device.type
    takes_rate = at == "cuda" or not isinstance(lr, Array)
    return at in FUSED_ON and takes_rate and p[0].dtype in FUSED and not any(isinstance(n, Array) for n in numbers)


def _fused_sgd(p: list[Array], g: list[Array], buffer: list[Array], lr: Any, decay: float, momentum: float,
               dampening: float, nesterov: bool, maximize: bool) -> None:  # fmt: skip
    torch._fused_sgd_(
        p, _as_laid_out(p, g), buffer, weight_decay=decay, momentum=momentum,
        lr=lr.to(torch.float32) if isinstance(lr, Array) else lr, dampening=dampening,
        nesterov=nesterov, maximize=maximize, is_first_step=False,
    )  # fmt: skip


def _alike(calls: list[tuple], at: slice) -> list[list[tuple]]:
    """The calls grouped by equal numbers, at these positions, equal dtypes and as many operands."""
    dtype, numbers, length = calls[0][0].dtype, calls[0][at], len(calls[0])
    if not any(isinstance(n, Array) for n in numbers):
        same = [call[at] == numbers and call[0].dtype is dtype and len(call) == length for call in calls]
        if False not in same:  # as in most steps, and found in half the time
            return [calls]
    groups: dict[tuple, list[tuple]] = {}
    for call in calls:
        groups.setdefault((call[0].dtype, len(call), *map(_identity, call[at])), []).append(call)
    return list(groups.values())


def _narrow(number: Any, like: Array) -> Any:
    return number.to(like.dtype) if isinstance(number, Array) else number


def _plus(a: list[Array], b: list[Array], scale: Any) -> list[Array]:
    if isinstance(scale, Array):
        return [x + y * _narrow(scale, y) for x, y in zip(a, b)]
    return list(torch._foreach_add(a, b, alpha=scale))


def _decayed(p: list[Array], g: list[Array], decay: Any, maximize: bool) -> list[Array]:
    g = list(torch._foreach_neg(g)) if maximize else g
    return _plus(g, p, decay) if isinstance(decay, Array) or decay else g


def _descend(p: list[Array], g: list[Array], lr: Any) -> None:
    """p -= lr * g, in place."""
    if isinstance(lr, Array):
        torch._foreach_sub_(p, [x * _narrow(lr, x) for x in g])
    else:
        # A kernel for many tensors gives each block 65,536 elements, which leaves most of a GPU idle on a few large ones.
        large = [x.numel() > 1 << 16 for x in p]
        for x, y in ((x, y) for x, y, is_large in zip(p, g, large) if is_large):
            x.add_(y, alpha=-lr)
        if not all(large):
            small = [(x, y) for x, y, is_large in zip(p, g, large) if not is_large]
            torch._foreach_add_([x for x, _ in small], [y for _, y in small], alpha=-lr)


def _as_laid_out(p: list[Array], g: list[Array]) -> list[Array]:
    """Gradients in the layouts of their parameters: fused steps go through memory."""
    return [y if y.stride() == x.stride() or _order(y) == _order(x) else torch.empty_like(x).copy_(y) for x, y in zip(p, g)]


def _order(a: Array) -> list[int]:
    """Its strides, but for axes of one element."""
    return [step for n, step in zip(a.shape, a.stride()) if n > 1]


def _identity(number: object) -> object:
    """A key of a number: numbers compare by value, 0-d tensors by identity."""
    return number if type(number) in NUMBERS or not isinstance(number, Array) else id(number)


def _holders(calls: list[tuple]) -> list[list[int]]:
    """The reference count of each operand of the calls."""
    return [list(map(sys.getrefcount, call)) for call in calls]


def _alone() -> int:
    """The reference count, in this Python version, of an operand that only the caller and its call hold."""
    register = torch.zeros(1)
    return _holders([(register,)])[0][0]


def over_dying(run: Callable[..., Any], reads: int, calls: list[tuple], **settings: Any) -> Any:
    """Call `run`, which overwrites parameters and their state, on operands that die with the call and have no other reference
    (no other id, no view, no read in progress, no memory shared with a client), and on copies of all others. `reads`: how many
    tensors after the first it does not overwrite."""
    given, written = [], _written(calls[0], reads)
    for call, counts in zip(calls, _holders(calls)):
        positions = written if len(call) == len(calls[0]) else _written(call, reads)
        held = [i for i in positions if counts[i] != ALONE or not _owned(call[i])]
        given.append(tuple([_dense(x) if i in held else x for i, x in enumerate(call)]) if held else call)
    return run(given, **settings)


def _written(call: tuple, reads: int) -> list[int]:
    """The positions of an update's tensors, except of the gradient's."""
    return [i for i, x in enumerate(call) if not 1 <= i <= reads and type(x) not in NUMBERS and isinstance(x, Array)]


def _owned(x: Array) -> bool:
    storage_at = getattr(x, "storage_at", None)  # set by its first update: storage and strides never change
    if storage_at is None:
        storage = x.untyped_storage()
        if not x.is_contiguous() or not storage.resizable():
            return False
        storage_at = x.storage_at = storage._cdata  # type: ignore[attr-defined]
        del storage
    return _storage_references(storage_at) == UNSHARED and x._use_count() == 1  # type: ignore[attr-defined]


_storage_references = torch._C._storage_Use_Count


def _unshared() -> int:
    """The references to the storage of one tensor, in this version of PyTorch."""
    probe = torch.zeros(1)
    return _storage_references(probe.untyped_storage()._cdata)


def _dense(x: Array) -> Array:
    return x.clone(memory_format=torch.contiguous_format)


ALONE, UNSHARED = _alone(), _unshared()
adam.takes_tensors = True  # type: ignore[attr-defined]
