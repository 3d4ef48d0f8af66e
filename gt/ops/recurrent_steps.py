"""The steps of recurrent layers, forward and backward, one after another: over an engine's arrays, and over tensors.

Sequences of one length are (length, batch, features). Sequences of several lengths are packed: for each step t, the rows of all
sequences that reach it, longest sequence first; `sizes` has the number of rows of each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GATES = {"RNN_TANH": 1, "RNN_RELU": 1, "LSTM": 4, "GRU": 3}


class OnArrays:
    """The operations of the steps, over an engine's arrays."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def sigmoid(self, a: Any) -> Any:
        return self.xp.tanh(a * 0.5) * 0.5 + 0.5

    def tanh(self, a: Any) -> Any:
        return self.xp.tanh(a)

    def where_positive(self, a: Any, b: Any) -> Any:
        """b where a > 0, else 0."""
        return self.xp.where(a > 0, b, self.xp.zeros((), dtype=b.dtype))

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        return self.xp.concat(tuple(parts), axis=axis) if len(parts) > 1 else parts[0]

    def stack(self, parts: Sequence[Any]) -> Any:
        return self.xp.stack(tuple(parts), axis=0)

    def total(self, a: Any) -> Any:
        return self.xp.sum(a, axis=(0,))

    def reshape(self, a: Any, shape: tuple[int, ...]) -> Any:
        return self.xp.reshape(a, shape)


class OnTensors:
    """The same over tensors, for gradients of gradients."""

    def sigmoid(self, a: Any) -> Any:
        return a.sigmoid()

    def tanh(self, a: Any) -> Any:
        return a.tanh()

    def where_positive(self, a: Any, b: Any) -> Any:
        return (a > 0).pick(b, 0.0)

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        return parts[0].op("cat", *parts[1:], axis=axis) if len(parts) > 1 else parts[0]

    def stack(self, parts: Sequence[Any]) -> Any:
        return self.concat([p.unsqueeze(0) for p in parts])

    def total(self, a: Any) -> Any:
        return a.sum(axis=0)

    def reshape(self, a: Any, shape: tuple[int, ...]) -> Any:
        return a.reshape(shape)


@dataclass(frozen=True)
class Layer:
    """The weights of one layer in one direction."""

    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None
    w_hr: Any = None  # the projection of an LSTM's output


@dataclass
class Taken:
    """Values of a layer's steps for its gradient, in the order of the steps."""

    order: list[int]
    inner: list[Any]  # values for the gradient of the step
    before: list[Any]  # h before the step
    made: list[Any]  # the input of a projection


def layers_of(weights: Sequence[Any], count: int, bias: bool) -> list[Layer]:
    """Weights in PyTorch's order, one `Layer` for each layer and direction."""
    each = len(weights) // count
    found = []
    for i in range(count):
        w_ih, w_hh, *rest = weights[i * each : (i + 1) * each]
        b_ih, b_hh = rest[:2] if bias else (None, None)
        found.append(Layer(w_ih, w_hh, b_ih, b_hh, rest[2 * bias] if len(rest) > 2 * bias else None))
    return found


def _step(ns: Any, mode: str, x: Any, state: tuple, hidden: Any, layer: Layer) -> tuple[tuple, Any, Any]:
    """One step: the state after it, the values for its gradient, and the input of a projection."""
    n = layer.w_hh.shape[0] // GATES[mode]
    if mode == "LSTM":
        gates, c = x + hidden, state[1]
        i, f, g, o = (gates[:, k * n : (k + 1) * n] for k in range(4))
        i, f, g, o = ns.sigmoid(i), ns.sigmoid(f), ns.tanh(g), ns.sigmoid(o)
        new = f * c + i * g
        bent = ns.tanh(new)
        m = o * bent
        h = m if layer.w_hr is None else m @ layer.w_hr.T
        return (h, new), (i, f, g, o, c, bent), m
    if mode == "GRU":
        h = state[0]
        r, z = ns.sigmoid(x[:, :n] + hidden[:, :n]), ns.sigmoid(x[:, n : 2 * n] + hidden[:, n : 2 * n])
        new = ns.tanh(x[:, 2 * n :] + r * hidden[:, 2 * n :])
        return (new + z * (h - new),), (r, z, new, hidden[:, 2 * n :], h), None
    h = ns.tanh(x + hidden) if mode == "RNN_TANH" else ns.where_positive(x + hidden, x + hidden)
    return (h,), (h,), None


def _step_back(ns: Any, mode: str, gs: list[Any], inner: tuple, layer: Layer) -> tuple[list[Any], Any, Any]:
    """The gradients of the state before a step (without the part through the hidden weights), of the input's part, and of the
    hidden weights' part."""
    if mode == "LSTM":
        i, f, g, o, c, bent = inner
        gm = gs[0] if layer.w_hr is None else gs[0] @ layer.w_hr
        gc = gs[1] + gm * o * (1.0 - bent * bent)
        parts = [gc * g * i * (1.0 - i), gc * c * f * (1.0 - f), gc * i * (1.0 - g * g), gm * bent * o * (1.0 - o)]
        gates = ns.concat(parts, 1)
        return [None, gc * f], gates, gates
    if mode == "GRU":
        r, z, new, hidden, h = inner
        gz, gn = gs[0] * (h - new) * z * (1.0 - z), gs[0] * (1.0 - z) * (1.0 - new * new)
        gr = gn * hidden * r * (1.0 - r)
        return [gs[0] * z], ns.concat([gr, gz, gn], 1), ns.concat([gr, gz, gn * r], 1)
    h = inner[0]
    g = gs[0] * (1.0 - h * h) if mode == "RNN_TANH" else ns.where_positive(h, gs[0])
    return [None], g, g


def _along(ns: Any, mode: str, flat: Any, begin: list[Any], layer: Layer, sizes: Sequence[int], back: bool) -> tuple:
    """One layer in one direction over packed rows: the packed outputs, the final states, and the values for the gradient
    (`Taken`)."""
    entered = flat @ layer.w_ih.T if layer.b_ih is None else flat @ layer.w_ih.T + layer.b_ih
    offsets = _offsets(sizes)
    order = list(range(len(sizes)))[:: -1 if back else 1]
    state = tuple(s[: sizes[order[0]]] for s in begin)
    ends: list[tuple] = []
    outputs: list[Any] = [None] * len(sizes)
    taken = Taken(order, [], [], [])
    for t in order:
        n, have = sizes[t], state[0].shape[0]
        if n > have:  # backwards, shorter sequences begin later
            state = tuple(ns.concat([s, b[have:n]]) for s, b in zip(state, begin))
        elif n < have:
            ends.append(tuple(s[n:] for s in state))
            state = tuple(s[:n] for s in state)
        hidden = state[0] @ layer.w_hh.T if layer.b_hh is None else state[0] @ layer.w_hh.T + layer.b_hh
        taken.before.append(state[0])
        state, inner, made = _step(ns, mode, entered[offsets[t] : offsets[t] + n], state, hidden, layer)
        taken.inner.append(inner)
        taken.made.append(made)
        outputs[t] = state[0]
    last = tuple(ns.concat([s, *(end[i] for end in reversed(ends))]) for i, s in enumerate(state))
    return ns.concat(outputs), last, taken


def _along_back(
    ns: Any, mode: str, gy: Any, g_last: list[Any], flat: Any, layer: Layer, sizes: Sequence[int], taken: Taken
) -> tuple:
    """The gradient of `_along`: of its input, of its initial states, and of the weights."""
    offsets = _offsets(sizes)
    gs = [g[: sizes[taken.order[-1]]] for g in g_last]
    g_initial: list[list[Any]] = []
    entered: list[Any] = [None] * len(sizes)
    hidden, gate_grads = [], []
    for at in range(len(taken.order) - 1, -1, -1):
        t = taken.order[at]
        n, have = sizes[t], gs[0].shape[0]
        if n > have:  # forwards, these sequences ended here
            gs = [ns.concat([g, last[have:n]]) for g, last in zip(gs, g_last)]
        elif n < have:
            g_initial.append([g[n:] for g in gs])
            gs = [g[:n] for g in gs]
        gs[0] = gs[0] + gy[offsets[t] : offsets[t] + n]
        gate_grads.append(gs[0])
        gs, entered[t], g_hidden = _step_back(ns, mode, gs, taken.inner[at], layer)
        hidden.append(g_hidden)
        through = g_hidden @ layer.w_hh
        gs[0] = through if gs[0] is None else gs[0] + through
    g_begin = [ns.concat([g, *(part[i] for part in reversed(g_initial))]) for i, g in enumerate(gs)]
    g_in, g_hid = ns.concat(entered), ns.concat(hidden)
    weights = [g_in.T @ flat, g_hid.T @ ns.concat(taken.before[::-1])]
    if layer.b_ih is not None:
        weights += [ns.total(g_in), ns.total(g_hid)]
    if layer.w_hr is not None:
        weights.append(ns.concat(gate_grads).T @ ns.concat(taken.made[::-1]))
    return g_in @ layer.w_ih, g_begin, weights


def _offsets(sizes: Sequence[int]) -> list[int]:
    found = [0]
    for n in sizes:
        found.append(found[-1] + n)
    return found


def _flattened(ns: Any, x: Any, sizes: tuple[int, ...]) -> tuple[Any, tuple[int, ...]]:
    """Packed rows, and the number of rows of each step."""
    if sizes:
        return x, sizes
    return ns.reshape(x, (x.shape[0] * x.shape[1], x.shape[2])), (x.shape[1],) * x.shape[0]


def unrolled(ns: Any, x: Any, state: Sequence[Any], weights: Sequence[Any], mode: str, layers: int, ways: int, bias: bool,
             sizes: tuple[int, ...]) -> tuple[Any, list[Any], list]:  # fmt: skip
    """The outputs of the last layer, the final states of all layers, and the values for each layer's gradient."""
    flat, counts = _flattened(ns, x, sizes)
    found, ends, notes = flat, [], []
    for i, layer in enumerate(layers_of(weights, layers * ways, bias)):
        if i % ways == 0:
            entered, made = found, []
        y, end, taken = _along(ns, mode, entered, [s[i] for s in state], layer, counts, back=i % 2 == 1 and ways == 2)
        made.append(y)
        ends.append(end)
        notes.append((entered, layer, taken))
        found = ns.concat(made, 1) if len(made) == ways else found
    y = found if sizes else ns.reshape(found, (x.shape[0], x.shape[1], found.shape[1]))
    return y, [ns.stack(part) for part in zip(*ends)], [counts, notes]


def unrolled_back(ns: Any, gy: Any, g_last: Sequence[Any], x: Any, notes: list, mode: str, ways: int) -> tuple:
    """The gradients of the input, of the initial states, and of the weights."""
    counts, parts = notes
    g = ns.reshape(gy, (-1, gy.shape[-1])) if gy.ndim == 3 else gy
    g_initial: list[Any] = [None] * len(parts)
    weights: list[list[Any]] = [[]] * len(parts)
    for first in range(len(parts) - ways, -1, -ways):
        below = None
        width = g.shape[1] // ways
        for way in range(ways):
            i = first + way
            entered, layer, taken = parts[i]
            part = g[:, way * width : (way + 1) * width] if ways > 1 else g
            gx, g_initial[i], weights[i] = _along_back(ns, mode, part, [s[i] for s in g_last], entered, layer, counts, taken)
            below = gx if below is None else below + gx
        g = below
    gx = ns.reshape(g, tuple(x.shape))
    return gx, [ns.stack(part) for part in zip(*g_initial)], [w for group in weights for w in group]
