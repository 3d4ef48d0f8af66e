"""LSTMs of few units on the CPU, by `gt.worker.engine.small` in C: oneDNN takes longer to prepare each of their steps than the
step takes. Both passes of an LSTM use it or neither, as it saves other values for the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gt.worker.engine.small import NATIVE

Array = torch.Tensor
WORK = 1 << 17  # most multiplications of a step: oneDNN is faster at larger ones
WIDEST = 0 if NATIVE is None else NATIVE.DEEPEST // 4  # most hidden units, and inputs of a step: four gates each
EACH = 4  # weights of a layer


def takes(x: Array, begin: Sequence[Array], weights: Sequence[Array], mode: str, ways: int, bias: bool, sizes: tuple) -> bool:
    """Whether an LSTM is small, of one direction and without projections."""
    if NATIVE is None or mode != "LSTM" or ways != 1 or not bias or sizes or not x.is_cpu or x.dtype is not torch.float32:
        return False
    if x.ndim != 3 or len(weights) != EACH * begin[0].shape[0] or not x.numel():
        return False
    if weights[1].shape[0] != EACH * weights[1].shape[1]:
        return False
    hidden, inputs, batch = weights[1].shape[-1], max(x.shape[-1], weights[1].shape[-1]), x.shape[1]
    return 0 < hidden <= WIDEST and inputs <= WIDEST and batch * EACH * hidden * (inputs + hidden) <= WORK


def forward(x: Array, begin: Sequence[Array], weights: Sequence[Array]) -> tuple[tuple[Array, ...], list[tuple[Array, ...]]]:
    """The results, and the tensors for each layer's gradient."""
    hidden, kept = weights[1].shape[1], []
    x = x.contiguous()
    steps, batch = x.shape[:2]
    turned, room = x.new_empty(hidden, EACH * hidden), x.new_empty(batch, EACH * hidden)
    for n, (h, c) in enumerate(zip(*(t.contiguous().unbind() for t in begin))):
        own = [w.contiguous() for w in weights[EACH * n : EACH * n + EACH]]
        y, cells = x.new_empty(steps, batch, hidden), x.new_empty(steps, batch, hidden)
        gates = x.new_empty(steps, batch, EACH * hidden)
        layer = (x, *own, h, c, y, cells, gates, turned, room)
        NATIVE.lstm(steps, batch, x.shape[2], hidden, *(a.data_ptr() for a in layer))
        kept.append(layer)
        x = y
    ends = [torch.stack([layer[i][-1] for layer in kept]) for i in (7, 8)]
    return (x.clone(), *ends), kept  # a copy, since later instructions may overwrite it


def backward(gy: Array, g_last: Sequence[Array], kept: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    of_weights: list[Array] = []
    first: list[list[Array]] = []
    last = list(zip(*(t.unbind() for t in g_last)))
    for layer, ends in zip(reversed(kept), reversed(last)):
        x, w_ih, w_hh, gates = layer[0], layer[1], layer[2], layer[9]
        gy, state = gy.contiguous(), [g.clone() for g in ends]
        made: list[Array] = [
            torch.empty_like(x),
            torch.zeros_like(w_ih),
            torch.zeros_like(w_hh),
            gates.new_empty(gates.shape[2]),
        ]
        room = torch.empty_like(gates)
        given: tuple[Any, ...] = (*layer, gy, *state, room, *made)
        NATIVE.lstm_gradient(*x.shape, w_hh.shape[1], *(a.data_ptr() for a in given))
        gy, of_ih, of_hh, of_bias = made
        of_weights[:0] = [of_ih, of_hh, of_bias, of_bias.clone()]
        first.insert(0, state)
    return gy, *(torch.stack([state[i] for state in first]) for i in (0, 1)), *of_weights
