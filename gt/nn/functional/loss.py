"""Losses. Under autocast they compute in float32."""

from __future__ import annotations

from typing import Any

from gt.autograd.function import Function
from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.checks import require_of
from gt.client.functions.elementwise import where
from gt.client.functions.products import linear
from gt.client.saved import saves
from gt.client.scope import HERE
from gt.errors import ArgumentError, ArgumentTypeError
from gt.nn.functional.activations import log_softmax, logsigmoid, softplus
from gt.ops.table import TABLE
from gt.spec import DType, float32


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """PyTorch's deprecated flags `size_average` and `reduce` as a reduction."""
    if size_average is None and reduce is None:
        return reduction
    return "none" if reduce is False else "mean" if size_average is not False else "sum"


def known_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(f"no reduction {reduction!r}: known are mean, sum, none")


def reduced(loss: Tensor, reduction: str) -> Tensor:
    known_reduction(reduction)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Under autocast, in float32."""
    if HERE.scope is None or HERE.scope.cast is None:
        return tensors
    return tuple(t.to(float32) if t.handle.spec.dtype.rank == 2 else t for t in tensors)


@saves("input", "target")
def mse_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The squared difference."""
    input, target = _counted(*_wide(input, target))
    loss = (input - target).square()
    reduction = _reduction(size_average, reduce, reduction)
    if weight is not None:
        loss = loss * weight
        if reduction == "mean":
            return loss.sum() / weight.expand(loss.shape).sum()
    return reduced(loss, reduction)


def l1_loss(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Tensor:
    """The absolute difference."""
    input, target = _wide(input, target)
    return reduced((input - target).abs(), _reduction(size_average, reduce, reduction))


def _counted(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Booleans as numbers of the other's dtype."""
    a, b = input.dtype, target.dtype
    return (input.to(b) if not a.rank else input), (target.to(a) if not b.rank else target)


def into_dtype(name: str, loss: Tensor, dtype: DType) -> Tensor:
    """A loss in the dtype of the argument that decides it in PyTorch, which has to be one of fractions."""
    if dtype.rank < loss.dtype.rank:
        found = loss.dtype.name
        raise ArgumentTypeError(f"result type {found} of {name} can't be cast to {dtype.name}: give both tensors as {found}")
    return loss.to(dtype)


@saves("input", "target")
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Squared within `beta` of the target, absolute beyond."""
    if beta < 0:
        raise ArgumentError(f"beta: expected 0 or more, got {beta}")
    reduction = _reduction(size_average, reduce, reduction)
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    input, target = _counted(*_wide(input, target))
    far = (input - target).abs()
    return reduced(where(far < beta, far * far * (0.5 / beta), far - 0.5 * beta), reduction)


@saves("input", "target")
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """Squared within `delta` of the target, absolute beyond, with the slope of `delta`."""
    if delta <= 0:
        raise ArgumentError(f"huber_loss: expected a delta above 0, got {delta}")
    input, target = _counted(*_wide(input, target))
    far = (input - target).abs()
    loss = into_dtype("huber_loss", where(far <= delta, far * far * 0.5, (far - 0.5 * delta) * delta), input.dtype)
    return reduced(loss if weight is None else loss * weight, reduction)


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross-entropy of scores (n, classes, ...) with class indices (n, ...) or probabilities of the scores' shape."""
    reduction = _reduction(size_average, reduce, reduction)
    (input,) = _wide(input)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"expected label_smoothing from 0 to 1, got {label_smoothing}")
    if target.handle.spec.dtype.rank == 2:
        return _against_probabilities(input, target, weight, reduction, label_smoothing)
    known_reduction(reduction)
    operands = (input, target, float(label_smoothing)) + (() if weight is None else (weight,))
    loss, count, _ = apply(TABLE["cross_entropy"], operands, (ignore_index, reduction != "none"))
    return loss / count.detach() if reduction == "mean" else loss


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, weight: Tensor | None = None,
    reduction: str = "mean", ignore_index: int | None = None, label_smoothing: float = 0.0, options: Any = None,
) -> Tensor:  # fmt: skip
    """`cross_entropy` of `linear(input, linear_weight, linear_bias)`. The weight may have axes between classes and features;
    `options`, by which PyTorch saves memory, have no effect."""
    if linear_weight.ndim < 2:
        raise ArgumentError(f"linear_cross_entropy: expected a weight (classes, ..., features), got {linear_weight.shape}")
    classes, *inner, features = linear_weight.shape
    lead = input.shape[:-1]
    if input.shape[-1] != features or len(lead) > 1 or inner and not lead:
        raise ArgumentError(
            f"linear_cross_entropy by {linear_weight.shape}: expected an input (batch, {features}), got {input.shape}"
        )
    if (
        options is not None and reduction != "none" and not inner
    ):  # PyTorch then computes the gradients in the forward pass, and saves them
        input, linear_weight, target = input.clone(), linear_weight.clone(), target.clone()
    shape = (*lead, classes, *inner)
    if ignore_index is not None and target.shape == shape:
        raise ArgumentError(f"ignore_index={ignore_index} needs a target of class indices, not of probabilities")
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    scores = linear(input, linear_weight.reshape(-1, features), bias).reshape(shape)
    return cross_entropy(
        scores, target, weight=weight, reduction=reduction, ignore_index=-100 if ignore_index is None else ignore_index,
        label_smoothing=label_smoothing,
    )  # fmt: skip


def _against_probabilities(input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float) -> Tensor:
    if target.handle.spec.shape != input.handle.spec.shape:
        raise ArgumentError(f"expected probabilities of the scores' shape {input.shape}, got {target.shape}")
    axis = 1 if input.ndim > 1 else 0
    classes = input.shape[axis]
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / classes
    terms = log_softmax(input, axis) * target
    if weight is not None:
        terms = terms * weight.reshape((1, -1) + (1,) * (input.ndim - 2) if axis else (-1,))
    loss = -terms.sum(axis=axis)
    return loss.sum() / max(input.numel() // classes, 1) if reduction == "mean" else reduced(loss, reduction)


@saves("input", "target", "weight")
def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Minus the log-probability, given as input (n, classes, ...), of the class indices (n, ...)."""
    reduction = _reduction(size_average, reduce, reduction)
    (input,) = _wide(input)
    axis = 1 if input.ndim > 1 else 0
    counted = target != ignore_index
    safe = where(counted, target, 0)
    picked = apply(TABLE["gather"], (input, safe.unsqueeze(axis)), (axis,)).squeeze(axis)
    count = counted.to(input.dtype)
    if weight is not None:
        chosen = apply(TABLE["index_select"], (weight, safe.reshape(-1)), (0,)).reshape(safe.shape)
        count = count * chosen
    loss = where(counted, -picked, 0.0) * count
    return loss.sum() / count.sum() if reduction == "mean" else reduced(loss, reduction)


class _BinaryCrossEntropy(Function):
    """As PyTorch's: logarithms of at least -100, and a finite gradient for inputs of 0 and 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, t: Tensor) -> Tensor:
        ctx.save_for_backward(x, t)
        return (t - 1.0) * (1.0 - x).log().maximum(-100.0) - t * x.log().maximum(-100.0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        x, t = ctx.saved_tensors
        by_target = g * ((1.0 - x).log().maximum(-100.0) - x.log().maximum(-100.0)) if ctx.needs_input_grad[1] else None
        return g * (x - t) / ((1.0 - x) * x).maximum(1e-12), by_target


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The binary cross-entropy of probabilities with targets from 0 to 1."""
    if target.handle.spec.shape != input.handle.spec.shape:
        raise ArgumentError(f"binary_cross_entropy: expected targets of the input's shape {input.shape}, got {target.shape}")
    input, target = _wide(input, target)
    if input.dtype is not target.dtype:
        raise ArgumentTypeError(
            f"binary_cross_entropy of {input.dtype.name}: expected targets of that dtype, got {target.dtype.name}"
        )
    require_of(input, lambda p: (p >= 0) & (p <= 1), "binary_cross_entropy: a probability lies between 0 and 1; found others")
    loss = _BinaryCrossEntropy.apply(input, target)
    return reduced(loss if weight is None else loss * weight, _reduction(size_average, reduce, reduction))


@saves("target")
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The binary cross-entropy of scores, whose sigmoid is the probability, with targets from 0 to 1."""
    if target.handle.spec.shape != input.handle.spec.shape:
        raise ArgumentError(
            f"binary_cross_entropy_with_logits: expected targets of the input's shape {input.shape}, got {target.shape}"
        )
    input, target = _wide(input, target)
    if pos_weight is None:
        loss = (1.0 - target) * input + softplus(-input, 1.0, 40.0)  # less logsigmoid(input), which negates that
    else:
        loss = (1.0 - target) * input - logsigmoid(input) * ((pos_weight - 1.0) * target + 1.0)
    loss = into_dtype("binary_cross_entropy_with_logits", loss, target.dtype)
    return reduced(loss if weight is None else loss * weight, _reduction(size_average, reduce, reduction))


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: Any = None,
    reduce: Any = None,
    reduction: str = "mean",
    log_target: bool = False,
) -> Tensor:
    """The Kullback-Leibler divergence of the target's distribution from the input's log-probabilities."""
    input, target = _wide(input, target)
    if log_target:
        loss = target.exp() * (target - input)
    else:
        safe = where(target == 0, 1.0, target)  # 0 * log 0 is 0
        loss = target * safe.log() - target * input
    reduction = _reduction(size_average, reduce, reduction)
    if reduction == "batchmean":
        return loss.sum() / (input.shape[0] if input.ndim else 1)
    return reduced(loss, reduction)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The cosine distance for targets of 1; for targets of -1 the cosine similarity above `margin`."""
    input1, input2 = _wide(input1, input2)
    product = (input1 * input2).sum(axis=-1)
    size = ((input1 * input1).sum(axis=-1) + 1e-12) * ((input2 * input2).sum(axis=-1) + 1e-12)
    cosine = product / size.sqrt()
    apart = where(target == -1, (cosine - margin).maximum(0.0), 0.0)
    loss = where(target == 1, 1.0 - cosine, 0.0) + apart
    return reduced(loss, _reduction(size_average, reduce, reduction))
