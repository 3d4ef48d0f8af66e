"""Recurrent layers by PyTorch's own kernels: cuDNN on a GPU, oneDNN and ATen on the CPU.

The size of a library's saved state for the backward pass is known only to the library, so it is no result of the row: it is a
Python attribute of the row's last result, the number `saved`. A gradient whose `saved` lacks it (it was copied, already used,
or saved by a call on other shapes) runs the forward pass again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gt.ops.recurrent import split, split_grad
from gt.ops.recurrent_steps import OnArrays, layers_of, unrolled, unrolled_back
from gt.worker.engine.torch import aten, small_recurrent
from gt.worker.engine.torch.small_recurrent import MODES

Array = torch.Tensor
SMALL = 1 << 14  # elements up to which a copy is cheaper than another tensor over the same memory


class _Torch:
    """The NumPy functions that the unrolled form uses, over PyTorch."""

    tanh, where = staticmethod(torch.tanh), staticmethod(torch.where)

    def zeros(self, shape: tuple, dtype: Any) -> Array:
        return torch.zeros(shape, dtype=dtype)

    def concat(self, parts: Any, axis: int) -> Array:
        return torch.cat(parts, axis)

    def stack(self, parts: Any, axis: int) -> Array:
        return torch.stack(parts, axis)

    def sum(self, a: Array, axis: tuple) -> Array:
        return a.sum(axis)

    def reshape(self, a: Array, shape: tuple) -> Array:
        return a.reshape(shape)


def _by_steps(x: Array) -> bool:
    """Whether to unroll the steps: for an empty input, which libraries refuse, or for a compiler that traces the call."""
    return not x.numel() or bool(torch._C._len_torch_dispatch_stack())


def _wide(operands: Sequence[Array]) -> list[Array]:
    """16-bit operands on a CPU in 32 bits, as they would be rounded at each step."""
    return [a.float() if a.dtype.itemsize == 2 and a.device.type == "cpu" else a for a in operands]


def recurrent(
    x: Array, h: Array, *rest: Array, mode: str, layers: int, ways: int, bias: bool, sizes: tuple, saves: bool
) -> Any:
    dtype = x.dtype
    x, begin, weights = split(mode, _wide((x, h, *rest)))
    saved = torch.zeros((), device=x.device)
    if _by_steps(x) or not weights[0].numel():
        y, ends, _ = unrolled(OnArrays(_Torch()), x, begin, weights, mode, layers, ways, bias, sizes)
        return *(t.to(dtype) for t in (y, *ends)), saved
    if x.device.type == "cuda":
        made, kept = _cudnn(x, begin, weights, mode, layers, ways, bias, sizes, saves)
    elif small_recurrent.takes(x, begin, weights, mode, ways, bias, sizes):
        made, kept = small_recurrent.forward(x, begin, weights, mode, ways, bias)
    elif saves and _onednn_takes(x, begin, weights, mode, ways, bias, sizes):
        made, kept = _onednn(x, begin, weights)
    elif saves:
        made, kept = _recorded(x, begin, weights, mode, layers, ways, bias, sizes)
    else:
        made, kept = _aten(x, begin, weights, mode, layers, ways, bias, sizes), None
    saved.recurrent = _call_key((x, *begin, *weights), mode, layers, ways, bias, sizes), kept  # type: ignore[attr-defined]
    return *(t.to(dtype) for t in made), saved


def recurrent_grad(*operands: Array, mode: str, layers: int, ways: int, bias: bool, sizes: tuple, saves: bool) -> tuple:
    dtype, saved = operands[0].dtype, split_grad(mode, operands)[2]
    gy, g_last, _, ins = split_grad(mode, _wide(operands))
    x, begin, weights = split(mode, ins)
    if _by_steps(x) or not weights[0].numel():
        ns = OnArrays(_Torch())
        notes = unrolled(ns, x, begin, weights, mode, layers, ways, bias, sizes)[2]
        gx, g_initial, found = unrolled_back(ns, gy, g_last, x, notes, mode, ways)
        return tuple(t.to(dtype) for t in (gx, *g_initial, *found))
    of, kept = saved.__dict__.pop("recurrent", (None, None))
    if of != _call_key(ins, mode, layers, ways, bias, sizes):
        kept = None  # saved by a call of another kind
    if x.device.type == "cuda":
        kept = kept or _cudnn(x, begin, weights, mode, layers, ways, bias, sizes, True)[1]
        return _cudnn_back(gy, g_last, x, begin, weights, kept, mode, layers, ways, bias, sizes)
    if small_recurrent.takes(x, begin, weights, mode, ways, bias, sizes):
        kept = kept or small_recurrent.forward(x, begin, weights, mode, ways, bias)[1]
        return tuple(t.to(dtype) for t in small_recurrent.backward(gy, g_last, kept, ways))
    if _onednn_takes(x, begin, weights, mode, ways, bias, sizes):
        kept = kept or _onednn(x, begin, weights)[1]
        return tuple(t.to(dtype) for t in _onednn_back(gy, g_last, x, begin, weights, kept))
    leaves, results = kept or _recorded(x, begin, weights, mode, layers, ways, bias, sizes)[1]
    with torch.inference_mode(False), torch.enable_grad():
        return tuple(t.to(dtype) for t in torch.autograd.grad(results, leaves, (gy, *g_last)))


def _call_key(operands: Sequence[Array], *settings: Any) -> tuple:
    return ([(a.shape, a.dtype) for a in operands], settings)


def _counts(sizes: tuple) -> Array:
    return torch.tensor(sizes, dtype=torch.int64)


def _aten(
    x: Array, begin: Sequence[Array], weights: Sequence[Array], mode: str, layers: int, ways: int, bias: bool, sizes: tuple
) -> tuple:
    """PyTorch's function of this mode, which chooses a library itself."""
    functions: dict[str, Any] = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}
    run = functions[mode]
    state = list(begin) if mode == "LSTM" else begin[0]
    settings = (list(weights), bias, layers, 0.0, False, ways == 2)
    operands = (x, _counts(sizes), state, *settings) if sizes else (x, state, *settings, False)
    if layers_of(weights, layers * ways, bias)[0].w_hr is None:
        return tuple(run(*operands))
    on = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # oneDNN has no projections, and PyTorch would warn about it
    try:
        return tuple(run(*operands))
    finally:
        torch._C._set_mkldnn_enabled(on)


def _onednn_takes(
    x: Array, begin: Sequence[Array], weights: Sequence[Array], mode: str, ways: int, bias: bool, sizes: tuple
) -> bool:
    """Whether PyTorch's own LSTM would be oneDNN's, of one direction and without projections."""
    plain = mode == "LSTM" and ways == 1 and bias and not sizes and len(weights) == 4 * begin[0].shape[0]
    return plain and x.dtype is torch.float32 and torch._C._get_mkldnn_enabled() and torch.backends.mkldnn.is_available()


def _onednn(x: Array, begin: Sequence[Array], weights: Sequence[Array]) -> tuple[tuple, list[tuple[Array, ...]]]:
    """The results of a training step's forward pass, and each layer's results with the workspace of its gradient. PyTorch's
    autograd, which calls the same kernels, takes 0.7 times as long again for its graph and copies."""
    layers, hidden = len(weights) // 4, weights[1].shape[1]
    x, weights = x.contiguous(), [w.contiguous() for w in weights]
    kept: list[tuple[Array, ...]] = []
    with torch.enable_grad():  # else it leaves the workspace out
        for n, (h, c) in enumerate(zip(*(t.contiguous().unbind() for t in begin))):
            found = aten.mkldnn_rnn_layer(
                x, *weights[4 * n : 4 * n + 4], h, c, False, [], MODES["LSTM"], hidden, layers, True, False, False, True
            )
            kept.append(tuple(found))
            x = found[0]
    ends = [torch.stack([layer[i] for layer in kept]) for i in (1, 2)]
    return (x.clone(), *ends), kept  # a copy, since later instructions may overwrite it


def _onednn_back(
    gy: Array,
    g_last: Sequence[Array],
    x: Array,
    begin: Sequence[Array],
    weights: Sequence[Array],
    kept: list[tuple[Array, ...]],
) -> tuple[Array, ...]:
    layers, hidden = len(weights) // 4, weights[1].shape[1]
    x, gy, weights = x.contiguous(), gy.contiguous(), [w.contiguous() for w in weights]
    begin, g_last = ([t.contiguous() for t in pair] for pair in (begin, g_last))
    of_weights: list[Array] = []
    initial: list[tuple[Array, ...]] = []
    for n in reversed(range(layers)):
        y, h_end, c_end, workspace = kept[n]
        gy, *found = aten.mkldnn_rnn_layer_backward(
            kept[n - 1][0] if n else x, *weights[4 * n : 4 * n + 4], begin[0][n], begin[1][n], y, h_end, c_end, gy,
            g_last[0][n], g_last[1][n], False, MODES["LSTM"], hidden, layers, True, True, False, [], False, workspace,
        )  # fmt: skip
        of_weights[:0] = found[:4]
        initial.insert(0, found[4:])
    return gy, *(torch.stack([pair[i] for pair in initial]) for i in (0, 1)), *of_weights


def _leaf(a: Array) -> Array:
    """A tensor with this value for PyTorch's autograd, which does not accept inference tensors."""
    if a.numel() <= SMALL:
        return a.clone().requires_grad_()
    return torch.empty(0, dtype=a.dtype).set_(a.untyped_storage(), a.storage_offset(), a.shape, a.stride()).requires_grad_()


def _recorded(x: Array, begin: Sequence[Array], weights: Sequence[Array], *settings: Any) -> tuple[tuple, tuple]:
    """The results, and the tensors of PyTorch's backward pass. The results are copies, since later instructions may overwrite
    them and the backward pass reads its own."""
    with torch.inference_mode(False), torch.enable_grad():
        leaves = tuple(_leaf(a) for a in (x, *begin, *weights))
        n = 1 + len(begin)
        results = _aten(leaves[0], leaves[1:n], leaves[n:], *settings)
    return tuple(out.detach().clone() for out in results), (leaves, results)


def _cudnn_arguments(
    weights: Sequence[Array], mode: str, layers: int, ways: int, bias: bool, sizes: tuple, train: bool
) -> tuple:
    part = layers_of(weights, layers * ways, bias)[0]
    projected = 0 if part.w_hr is None else part.w_hr.shape[0]
    hidden = part.w_hh.shape[1] if part.w_hr is None else part.w_hr.shape[1]
    counts = list(sizes)
    return (MODES[mode], hidden, projected, layers, False, 0.0, train, ways == 2, counts, None)


def _cudnn(
    x: Array, begin: Sequence[Array], weights: Sequence[Array], mode: str, layers: int, ways: int, bias: bool, sizes: tuple,
    saves: bool,
) -> tuple[tuple, Any]:  # fmt: skip
    settings = _cudnn_arguments(weights, mode, layers, ways, bias, sizes, saves)
    x, h, *c = (t.contiguous() for t in (x, *begin))
    each = len(weights) // (layers * ways)
    packed = [w.contiguous().detach() for w in weights]  # new tensors, which the next line makes views of the buffer
    mode_number, hidden, projected = settings[:3]
    buffer = torch._cudnn_rnn_flatten_weight(
        packed, each, x.shape[-1], mode_number, hidden, projected, layers, False, ways == 2
    )
    y, hn, cn, reserve, buffer = torch._cudnn_rnn(x, packed, each, buffer, h, c[0] if c else None, *settings)
    made = (y, hn, cn) if c else (y, hn)
    if not saves:
        return made, None
    return tuple(m.clone() for m in made[:1]) + made[1:], (y, reserve, buffer)


def _cudnn_back(
    gy: Array, g_last: Sequence[Array], x: Array, begin: Sequence[Array], weights: Sequence[Array], kept: tuple, mode: str,
    layers: int, ways: int, bias: bool, sizes: tuple,
) -> tuple:  # fmt: skip
    settings = _cudnn_arguments(weights, mode, layers, ways, bias, sizes, True)
    y, reserve, buffer = kept
    x, h, *c = (t.contiguous() for t in (x, *begin))
    gy, gh, *gc = (t.contiguous() for t in (gy, *g_last))
    each = len(weights) // (layers * ways)
    dense = [w.contiguous() for w in weights]
    gx, ghx, gcx, found = torch.ops.aten._cudnn_rnn_backward(
        x,
        dense,
        each,
        buffer,
        h,
        c[0] if c else None,
        y,
        gy,
        gh,
        gc[0] if gc else None,
        *settings,
        reserve,
        [True, True, bool(c), True],
    )
    g_initial = (ghx, gcx) if c else (ghx,)
    return (gx, *g_initial, *found)


KERNELS: dict[str, Callable[..., Any]] = {"recurrent": recurrent, "recurrent_grad": recurrent_grad}
