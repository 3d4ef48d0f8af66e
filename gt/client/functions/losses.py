"""How wrong a prediction is."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.layers import layer, log_softmax, softplus
from gt.ops.table import TABLE


def reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"no reduction {reduction!r}: known are mean, sum, none")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


@layer
def cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
                  reduction: str = "mean", label_smoothing: float = 0.0) -> Tensor:  # fmt: skip
    """How unlikely the scores make the target: class numbers, or a probability for each class."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"no reduction {reduction!r}: known are mean, sum, none")
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing lies between 0 and 1: {label_smoothing}")
    if target.dtype.rank == 2:
        return _soft(input, target, weight, reduction, label_smoothing)
    operands = (input, target, float(label_smoothing), *(() if weight is None else (weight,)))
    total, count, _ = apply(TABLE["cross_entropy"], operands, (int(ignore_index), reduction != "none"))
    return total / count.detach() if reduction == "mean" else total


def _soft(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float) -> Tensor:
    axis = 1 if input.ndim > 1 else 0
    if input.shape != target.shape:
        raise ValueError(f"cross_entropy wants a probability for each score {input.shape}, not {target.shape}")
    classes = input.shape[axis]
    if smoothing:
        target = target * (1 - smoothing) + smoothing / classes
    logp = log_softmax(input, axis)
    if weight is not None:
        logp = logp * weight.reshape((1, -1) + (1,) * (input.ndim - 2) if axis else (-1,))
    loss = -(logp * target).sum(axis)
    if reduction == "mean":
        return loss.sum() / (max(input.numel() // max(classes, 1), 1) if input.ndim > 1 else 1)
    return loss.sum() if reduction == "sum" else loss


@layer
def nll_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
             reduction: str = "mean") -> Tensor:  # fmt: skip
    """Minus the logarithm of a probability that was given to the target."""
    axis = 1 if input.ndim > 1 else 0
    counted = target != ignore_index
    safe = counted.pick(target, 0)
    counts = counted.to(input.dtype) if weight is None else weight[safe] * counted
    loss = -input.gather(axis, safe.unsqueeze(axis)).squeeze(axis) * counts
    if reduction == "mean":
        return loss.sum() / counts.sum()
    return reduced(loss, reduction)


@layer
def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference."""
    return reduced((input - target).square(), reduction)


@layer
def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The magnitude of the difference."""
    return reduced((input - target).abs(), reduction)


@layer
def smooth_l1_loss(input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Squared below `beta`, straight above."""
    if beta == 0:
        return l1_loss(input, target, reduction)
    gap = (input - target).abs()
    return reduced((gap < beta).pick(gap * gap * (0.5 / beta), gap - 0.5 * beta), reduction)


@layer
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    return smooth_l1_loss(input, target, reduction, delta) * delta


@layer
def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Of a probability, against 0, 1 or one between."""
    likely, unlikely = (x.log().clamp(min=-100.0) for x in (input, 1.0 - input))
    loss = -(target * likely + (1.0 - target) * unlikely)
    return reduced(loss if weight is None else loss * weight, reduction)


@layer
def binary_cross_entropy_with_logits(input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean",
                                     pos_weight: Tensor | None = None) -> Tensor:  # fmt: skip
    """Of a score, against 0, 1 or one between."""
    down = softplus(-input, threshold=float("inf"))  # -log(sigmoid)
    if pos_weight is None:
        loss = (1.0 - target) * input + down
    else:
        loss = (1.0 - target) * input + ((pos_weight - 1.0) * target + 1.0) * down
    return reduced(loss if weight is None else loss * weight, reduction)


@layer
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """How far a distribution, given as logarithms, is from the target."""
    if log_target:
        loss = target.exp() * (target - input)
    else:
        loss = target.xlogy(target) - target * input
    if reduction == "batchmean":
        return loss.sum() / input.shape[0]
    return reduced(loss, reduction)


@layer
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0,
                          reduction: str = "mean") -> Tensor:  # fmt: skip
    """Vectors alike where the target is 1, apart by the margin where it is -1."""
    eps = 1e-12
    product = (input1 * input2).sum(-1)
    lengths = ((input1 * input1).sum(-1) + eps) * ((input2 * input2).sum(-1) + eps)
    cosine = product / lengths.sqrt()
    apart = (cosine - margin).clamp(min=0.0)
    loss = (target == 1).pick(1.0 - cosine, 0.0) + (target == -1).pick(apart, 0.0)
    return reduced(loss, reduction)


