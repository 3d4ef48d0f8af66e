"""Recurrent layers: whole stacks of LSTM, GRU and plain cells along sequences, as one row. Engines with a library's kernel use
it; the kernel here computes step by step (`recurrent_steps.py`, which also has the form of packed sequences)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.ops.estimate import PRODUCT
from gt.ops.recurrent_steps import GATES, OnArrays, OnTensors, layers_of, unrolled, unrolled_back
from gt.ops.table import Kind, Rule, op
from gt.spec import REPLICATE, Partial, Placement, Shard, Spec, float32


def states(mode: str) -> int:
    """The number of tensors of the state: h, and c for an LSTM."""
    return 2 if mode == "LSTM" else 1


def split(mode: str, operands: Sequence[Any]) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """Input, initial states, weights."""
    n = 1 + states(mode)
    return operands[0], operands[1:n], operands[n:]


def _shape(x: Spec, h: Spec, *rest: Spec, mode: str, layers: int, ways: int, bias: bool, sizes: tuple, saves: bool) -> Any:
    if mode not in GATES:
        raise ValueError(f"no recurrent layer {mode!r}: known are {', '.join(GATES)}")
    _, begin, weights = split(mode, (x, h, *rest))
    if type(sizes) is not tuple or type(layers) is not int:
        raise ValueError(f"{mode}: expected a number of layers, and sizes of packed rows, got {layers!r} and {sizes!r}")
    if layers < 1 or ways not in (1, 2) or len(weights) % (layers * ways) or len(begin) != states(mode):
        raise ValueError(f"{mode}: {len(weights)} weights do not fit {layers} layers and {ways} directions")
    if any(s.dtype is not x.dtype for s in (h, *rest)) or x.dtype.rank != 2:
        found = ", ".join(dict.fromkeys(s.dtype.name for s in (x, h, *rest)))
        raise TypeError(f"{mode}: expected its input, states and weights in one floating-point dtype, got {found}")
    if (
        x.ndim != (2 if sizes else 3)
        or not x.shape[0]
        or (sizes and (sum(sizes) != x.shape[0] or list(sizes) != sorted(sizes)[::-1]))
    ):
        raise ValueError(f"{mode}: expected (length, batch, features) of length 1 or more, or packed rows, got {x.shape}")
    batch = sizes[0] if sizes else x.shape[1]
    parts = layers_of(weights, layers * ways, bias)
    hidden, out = parts[0].w_hh.shape[0] // GATES[mode], parts[0].w_hh.shape[1]
    for i, part in enumerate(parts):
        width = x.shape[-1] if i < ways else out * ways
        want = [(GATES[mode] * hidden, width), (GATES[mode] * hidden, out), *[(GATES[mode] * hidden,)] * (2 * bias)]
        want += [(out, hidden)] if part.w_hr is not None else []
        have = [w.shape for w in (part.w_ih, part.w_hh, part.b_ih, part.b_hh, part.w_hr) if w is not None]
        if have != want:
            raise ValueError(f"{mode} with input {x.shape}: expected weights of {want}, got {have}")
    wide = [out, hidden][: states(mode)]
    for s, w in zip(begin, wide):
        if s.shape != (layers * ways, batch, w):
            raise ValueError(f"{mode}: expected a state of {(layers * ways, batch, w)}, got {s.shape}")
    return Spec((*x.shape[:-1], out * ways), x.dtype), *begin, Spec((), float32)


def _kernel(xp, x, h, *rest, mode, layers, ways, bias, sizes, saves):
    """The last result is an unused number: engines attach to it the values for their gradient."""
    x, begin, weights = split(mode, (x, h, *rest))
    y, ends, _ = unrolled(OnArrays(xp), x, begin, weights, mode, layers, ways, bias, sizes)
    return y, *ends, xp.zeros((), dtype=xp.dtype(float32.code))


def split_grad(mode: str, operands: Sequence[Any]) -> tuple[Any, Sequence[Any], Any, Sequence[Any]]:
    """The gradients of the outputs and of the states, the saved value of the forward pass, and its operands."""
    n = 1 + states(mode)
    return operands[0], operands[1:n], operands[n], operands[n + 1 :]


def _grad_shape(*operands: Spec, mode: str, layers: int, ways: int, bias: bool, sizes: tuple, saves: bool) -> Any:
    gy, g_last, _, ins = split_grad(mode, operands)
    made = _shape(*ins, mode=mode, layers=layers, ways=ways, bias=bias, sizes=sizes, saves=saves)
    if (gy, *g_last) != made[:-1]:
        raise ValueError(f"the gradient of {mode}: expected gradients of {made[:-1]}, got {(gy, *g_last)}")
    return tuple(ins)


def _back(ns: Any, operands: Sequence[Any], mode: str, layers: int, ways: int, bias: bool, sizes: tuple) -> tuple:
    gy, g_last, _, ins = split_grad(mode, operands)
    x, begin, weights = split(mode, ins)
    notes = unrolled(ns, x, begin, weights, mode, layers, ways, bias, sizes)[2]
    gx, g_initial, found = unrolled_back(ns, gy, g_last, x, notes, mode, ways)
    return (gx, *g_initial, *found)


def _grad_kernel(xp, *operands, mode, layers, ways, bias, sizes, saves):
    return _back(OnArrays(xp), operands, mode, layers, ways, bias, sizes)


def _lower(x, h, *rest, mode, layers, ways, bias, sizes, saves):
    x, begin, weights = split(mode, (x, h, *rest))
    y, ends, _ = unrolled(OnTensors(), x, begin, weights, mode, layers, ways, bias, sizes)
    return y, *ends, x.new_zeros(())


def _lower_grad(*operands, mode, layers, ways, bias, sizes, saves):
    return _back(OnTensors(), operands, mode, layers, ways, bias, sizes)


def _pull(gs, ys, ins, **statics):
    return list(gs[0].op("recurrent_grad", *gs[1:-1], ys[-1], *ins, **statics))


def _rules(kind: Kind) -> list[Rule]:
    """Sequences are independent; values saved for the gradient stay on their worker."""
    if kind.settings["sizes"]:
        return []
    n = 1 + states(kind.settings["mode"])
    cut: Placement = Shard(1)
    return [((*[cut] * n, *[REPLICATE] * (len(kind.ins) - n)), (*[cut] * n, REPLICATE))]


def _grad_rules(kind: Kind) -> list[Rule]:
    if kind.settings["sizes"]:
        return []
    n = 1 + states(kind.settings["mode"])
    cut: Placement = Shard(1)
    weights = len(kind.outs) - n
    term: Placement = Partial()
    return [((*[cut] * n, REPLICATE, *[cut] * n, *[REPLICATE] * weights), (*[cut] * n, *[term] * weights))]


def _specs(*shapes: tuple[int, ...]) -> tuple[Spec, ...]:
    return tuple(Spec(s, float32) for s in shapes)


def _try(
    mode: str, x: tuple, hidden: int, layers: int = 1, ways: int = 1, bias: bool = True, sizes: tuple = (), out: int = 0
) -> tuple:
    """Sample operands of the row, and of its gradient."""
    batch, gates, out = sizes[0] if sizes else x[1], GATES[mode] * hidden, out or hidden
    wide = [out, hidden][: states(mode)]
    begin = [(layers * ways, batch, w) for w in wide]
    weights: list[tuple] = []
    for i in range(layers * ways):
        weights += [(gates, x[-1] if i < ways else out * ways), (gates, out), *[(gates,)] * (2 * bias)]
        weights += [(out, hidden)] if out != hidden else []
    statics = {"mode": mode, "layers": layers, "ways": ways, "bias": bias, "sizes": sizes, "saves": True}
    ins, outs = _specs(x, *begin, *weights), _specs((*x[:-1], out * ways), *begin, ())
    return (ins, statics), ((*outs, *ins), statics)


def _seconds_of(operands: Sequence[Any], mode: str) -> float:
    """Each step of each sequence is multiplied by all matrices of weights."""
    x, _, weights = split(mode, operands)
    return PRODUCT * (x.numel // max(1, x.shape[-1])) * sum(w.numel for w in weights if w.ndim == 2)


def _seconds(kind: Kind) -> float:
    return _seconds_of(kind.ins, kind.settings["mode"])


def _grad_seconds(kind: Kind) -> float:
    """The gradients of the inputs and of the weights take a product each."""
    mode = kind.settings["mode"]
    return 2 * _seconds_of(split_grad(mode, kind.ins)[-1], mode)


def _steps(kind: Kind) -> int:
    """A step needs the state after the previous step, and a layer the outputs of the previous layer."""
    settings = kind.settings
    length = len(settings["sizes"]) or kind.ins[0].shape[0]
    return length * settings["layers"] * settings["ways"]


TRIES = [
    _try("LSTM", (2, 2, 1), 2, layers=2, ways=2, bias=False, out=1),
    _try("LSTM", (3, 1), 1, sizes=(2, 1)),
    _try("GRU", (3, 2), 1, ways=2, sizes=(2, 1)),
    _try("RNN_TANH", (2, 3, 1), 1, layers=2),
    _try("RNN_RELU", (2, 2, 1), 1, bias=False),
]


op("recurrent", compute_seconds=_seconds, sequential_steps=_steps, autocast="low",
   shape=_shape, shard=_rules, saved=1, keep="inputs saved", grad=_pull,
   tries=tuple(t[0] for t in TRIES), kernel=_kernel, lower=_lower)  # fmt: skip
op("recurrent_grad", compute_seconds=_grad_seconds, sequential_steps=_steps,
   shape=_grad_shape, shard=_grad_rules, tries=tuple(t[1] for t in TRIES),
   kernel=_grad_kernel, lower=_lower_grad)  # fmt: skip
