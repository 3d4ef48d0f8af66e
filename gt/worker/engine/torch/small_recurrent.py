"""Recurrent layers of few units on the CPU, by `gt.small` in C: libraries take longer to prepare each of their
steps than the step takes. Both passes of a layer use it or neither, as it saves other values for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gt.ops.recurrent_steps import GATES, Layer, layers_of
from gt.small import NATIVE

Array = torch.Tensor
MODES = {"RNN_RELU": 0, "RNN_TANH": 1, "LSTM": 2, "GRU": 3}  # numbers in PyTorch's enumeration of modes
WORK, OF_LSTM = 1 << 20, 1 << 17  # most multiplications of a step: libraries are faster at larger ones, oneDNN's LSTM soonest
DEEPEST = 0 if NATIVE is None else NATIVE.DEEPEST  # most terms of a sum


@dataclass(frozen=True)
class LayerRun:
    """One direction of a layer, with the tensors that it uses and makes."""

    mode: str
    back: bool
    x: Array  # (steps, batch, inputs)
    of: Layer
    begin: Sequence[Array]  # h, and c of an LSTM: (batch, hidden)
    y: Array  # (steps, batch, hidden * directions), of which this direction has its columns
    inner: Array  # (steps, batch, hidden)
    gates: Array  # (steps, batch, gates * hidden)

    def columns(self, y: Array) -> Array:
        """This direction's part of a tensor like `y`."""
        hidden = self.inner.shape[2]
        return y[..., hidden:] if self.back else y[..., :hidden]

    def ends(self) -> list[Array]:
        """The states after the last step."""
        return [t[0 if self.back else -1] for t in (self.columns(self.y), self.inner)[: len(self.begin)]]

    def call(self, function: Any, *others: Array | None) -> None:
        """A function of recurrent.h, with the other tensors that it needs."""
        c = self.begin[1] if len(self.begin) > 1 else None
        own = (self.x, self.of.w_ih, self.of.w_hh, self.of.b_ih, self.of.b_hh, self.begin[0], c)
        tensors = (*own, self.columns(self.y), self.inner, self.gates, *others)
        sizes = (MODES[self.mode], self.back, *self.x.shape, self.inner.shape[2], self.y.shape[2])
        function(*sizes, *(0 if t is None else t.data_ptr() for t in tensors))


def takes(x: Array, begin: Sequence[Array], weights: Sequence[Array], mode: str, ways: int, bias: bool, sizes: tuple) -> bool:
    """Whether the layers are small and without projections, and their sequences of one length."""
    if NATIVE is None or sizes or x.ndim != 3 or not x.is_cpu or x.dtype is not torch.float32 or not x.numel():
        return False
    rows, hidden = weights[1].shape
    inputs, batch = max(x.shape[-1], hidden * ways), x.shape[1]
    if not hidden or rows != GATES[mode] * hidden or max(inputs, rows) > DEEPEST:
        return False
    at_once = -(-batch // 4) * 4  # products take four rows at a time
    return at_once * rows * (inputs + hidden) <= (OF_LSTM if mode == "LSTM" else WORK)


def forward(
    x: Array, begin: Sequence[Array], weights: Sequence[Array], mode: str, ways: int, bias: bool
) -> tuple[tuple[Array, ...], list[LayerRun]]:
    """The results, and for the gradient the runs of each layer and direction."""
    steps, batch = x.shape[:2]
    rows, hidden = weights[1].shape
    y, runs = x.contiguous(), []
    turned, room = y.new_empty(hidden, rows), y.new_empty(batch, rows)
    states = list(zip(*(t.contiguous().unbind() for t in begin)))
    for n, (of, state) in enumerate(zip(layers_of([w.contiguous() for w in weights], len(states), bias), states)):
        if n % ways == 0:
            x, y = y, y.new_empty(steps, batch, hidden * ways)
        inner, gates = y.new_empty(steps, batch, hidden), y.new_empty(steps, batch, rows)
        runs.append(LayerRun(mode, n % ways == 1, x, of, state, y, inner, gates))
        runs[-1].call(NATIVE.layer, turned, room)
    ends = [torch.stack(same) for same in zip(*(run.ends() for run in runs))]
    return (y.clone(), *ends), runs  # a copy, since later instructions may overwrite it


def backward(gy: Array, g_last: Sequence[Array], runs: list[LayerRun], ways: int) -> tuple[Array, ...]:
    g_states = [g.clone(memory_format=torch.contiguous_format) for g in g_last]  # of the last states, then of the first
    of_weights: list[Array] = []
    for first in reversed(range(0, len(runs), ways)):
        gy, gx = gy.contiguous(), torch.empty_like(runs[first].x)
        found: list[Array] = []
        for n, run in enumerate(runs[first : first + ways], first):
            weights = [w for w in (run.of.w_ih, run.of.w_hh, run.of.b_ih, run.of.b_hh) if w is not None]
            made = [torch.zeros_like(w) for w in weights]
            g_gates = torch.empty_like(run.gates)
            g_hidden = torch.empty_like(run.gates) if run.mode == "GRU" else g_gates
            gh, gc = (g_states[0][n], g_states[1][n] if len(g_states) > 1 else None)
            biases = made[2:] or (None, None)
            run.call(NATIVE.layer_gradient, run.columns(gy), gh, gc, g_gates, g_hidden, gx, *made[:2], *biases)
            found += made
        gy, of_weights[:0] = gx, found
    return gy, *g_states, *of_weights
