"""The CTC loss and its gradient by PyTorch's kernels for CPUs. Those for GPUs read the lengths on the host, which no CUDA graph
can contain: there the row's own kernel runs, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gt.ops import TABLE
from gt.worker.engine.torch import aten
from gt.worker.engine.torch.namespace import TorchNamespace

Array = torch.Tensor


def _by_steps(p: Array) -> bool:
    """Whether to unroll the steps: on a GPU, without elements, or for a compiler that traces the call."""
    return p.device.type != "cpu" or not p.numel() or bool(torch._C._len_torch_dispatch_stack())


def _check(name: str, low: int, high: int, most: int) -> None:
    if low < 0 or high > most:
        raise IndexError(f"ctc_loss: {name} of {low} to {high} are out of range: expected 0 to {most}")


def _checked(p: Array, targets: Array, steps: Array, words: Array, blank: int) -> tuple[Array, list[int], list[int]]:
    """Targets, with blanks as padding, and the lengths. PyTorch reads and writes where class numbers point."""
    lengths, sizes = steps.tolist(), words.tolist()
    _check("input lengths", min(lengths), max(lengths), p.shape[0])
    _check("target lengths", min(sizes), max(sizes), targets.shape[1])
    if min(sizes) < targets.shape[1]:
        targets = torch.where(torch.arange(targets.shape[1]) < words.unsqueeze(1), targets, blank)
    if targets.numel():
        low, high = (int(n) for n in torch.aminmax(targets))
        _check("targets", low, high, p.shape[2] - 1)
    return targets, lengths, sizes


def ctc(
    p: Array, targets: Array, steps: Array, words: Array, *, blank: int, zero_infinity: bool, normalised: bool
) -> tuple[Array, Array]:
    wide = p.float() if p.dtype.itemsize == 2 else p
    if _by_steps(p):
        statics = {"blank": blank, "zero_infinity": zero_infinity, "normalised": normalised}
        loss, reached = TABLE["ctc"].kernel(TorchNamespace(p.device), wide, targets, steps, words, **statics)  # type: ignore[misc]
        return loss.to(p.dtype), reached
    made, lengths, sizes = _checked(wide, targets, steps, words, blank)
    loss, reached = aten._ctc_loss(wide, made, lengths, sizes, blank, zero_infinity)
    width = 2 * targets.shape[1] + 1
    inside = torch.arange(reached.shape[2]) <= 2 * words.unsqueeze(1)  # PyTorch leaves the rest as it was
    inside = inside.unsqueeze(1) & (torch.arange(p.shape[0]) < steps.unsqueeze(1)).unsqueeze(2)
    reached = reached.masked_fill_(inside.logical_not_(), float("-inf"))
    if reached.shape[2] < width:
        reached = torch.nn.functional.pad(reached, (0, width - reached.shape[2]), value=float("-inf"))
    loss = loss.masked_fill_(loss == float("inf"), 0.0) if zero_infinity else loss
    return loss.to(p.dtype), reached


def ctc_grad(
    g: Array, alpha: Array, p: Array, targets: Array, steps: Array, words: Array, *, blank: int, zero_infinity: bool,
    normalised: bool,
) -> Array:  # fmt: skip
    wide, g = p.to(alpha.dtype), g.to(alpha.dtype)
    if _by_steps(p):
        statics = {"blank": blank, "zero_infinity": zero_infinity, "normalised": normalised}
        operands = (g, alpha, wide, targets, steps, words)
        return TABLE["ctc_grad"].kernel(TorchNamespace(p.device), *operands, **statics).to(p.dtype)  # type: ignore[misc]
    made, lengths, sizes = _checked(p, targets, steps, words, blank)
    loss = _loss(alpha, steps, words)
    found = aten._ctc_loss_backward(g, wide, made, lengths, sizes, loss, alpha, blank, zero_infinity)
    if not normalised:  # PyTorch's is that of normalised log-probabilities
        within = torch.arange(p.shape[0]).unsqueeze(1) < steps
        if zero_infinity:
            within = within & (loss != float("inf"))
        found = found - torch.where(within.unsqueeze(2), wide.exp() * g.unsqueeze(1), 0.0)
    return found.to(p.dtype)


def _loss(alpha: Array, steps: Array, words: Array) -> Array:
    """The losses, as of the forward pass, which may have rounded them."""
    batch = torch.arange(len(steps))
    last = alpha[batch, (steps - 1).clamp(min=0)]
    word = torch.where(words > 0, last[batch, (2 * words - 1).clamp(min=0)], float("-inf"))
    total = torch.logaddexp(last[batch, 2 * words], word)
    empty = torch.where(words == 0, 0.0, torch.full_like(total, float("-inf")))
    return -torch.where(steps > 0, total, empty)


KERNELS: dict[str, Callable[..., Any]] = {"ctc": ctc, "ctc_grad": ctc_grad}
