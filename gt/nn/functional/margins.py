"""Losses of distances and margins, likelihoods of counts and Gaussians, and CTC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import arange, tensor
from gt.client.functions.elementwise import where
from gt.client.saved import note_saved, saves
from gt.errors import ArgumentError
from gt.nn.functional.activations import logsigmoid, softplus
from gt.nn.functional.loss import _reduction, _wide, into_dtype, known_reduction, reduced
from gt.ops import TABLE
from gt.spec import int64


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The distance between vectors along the last axis."""
    return (x1 - x2 + eps).norm(float(p), dim=-1, keepdim=keepdim)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The first input should be larger by a margin where the target is 1, the second where it is -1."""
    input1, input2 = _wide(input1, input2)
    loss = (-target * (input1 - input2) + margin).clamp(min=0)
    return reduced(loss, _reduction(size_average, reduce, reduction))


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """The distance where the target is 1; where it is -1, the margin minus the distance, at least 0."""
    (input,) = _wide(input)
    loss = where(target != 1, (margin - input).relu(), 0.0) + where(target != -1, input, 0.0)
    return reduced(loss, _reduction(size_average, reduce, reduction))


@saves("input", "target")
def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """`log(1 + exp(-target * input))`, targets being 1 or -1."""
    (input,) = _wide(input)
    loss = into_dtype("soft_margin_loss", softplus(target * -input, 1.0, 40.0), input.dtype)
    return reduced(loss, _reduction(size_average, reduce, reduction))


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *, distance_function: Callable | None = None, margin: float = 1.0,
    swap: bool = False, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The anchor should be nearer to the positive than to the negative by a margin, with a given distance function."""
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss: expected a margin above 0, got {margin}")
    far = pairwise_distance if distance_function is None else distance_function
    near, apart = far(anchor, positive), far(anchor, negative)
    if swap:
        apart = apart.minimum(far(positive, negative))
    return reduced((near - apart + margin).relu(), reduction)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The anchor should be nearer to the positive than to the negative by a margin."""
    return triplet_margin_with_distance_loss(
        *_wide(anchor, positive, negative), distance_function=lambda a, b: pairwise_distance(a, b, p, eps), margin=margin,
        swap=swap, reduction=_reduction(size_average, reduce, reduction),
    )  # fmt: skip


@saves("input")
def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, size_average: Any = None,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The score of the target class should be above all others by a margin."""
    known_reduction(_reduction(size_average, reduce, reduction))
    if weight is not None and weight.ndim != 1:
        raise ArgumentError(f"multi_margin_loss: expected one weight for each class, got {weight.shape}")
    if p not in (1, 2):
        raise ArgumentError(f"multi_margin_loss: expected p of 1 or 2, got {p}")
    (x,) = _wide(input if input.ndim == 2 else input.reshape(1, -1))
    if target.shape not in ((), (x.shape[0],)):
        raise ArgumentError(
            f"multi_margin_loss of {input.shape}: expected targets of shape {(x.shape[0],)}, got {target.shape}"
        )
    places = target.reshape(-1, 1)
    terms = (x - x.gather(1, places) + margin).relu()
    if p == 2:
        terms = terms * terms
    if weight is not None:
        terms = terms * weight[target.reshape(-1)].unsqueeze(1)
    own = places == arange(x.shape[1])
    loss = where(own, 0.0, terms).sum(axis=1) / x.shape[1]
    return reduced(loss if input.ndim == 2 else loss.squeeze(0), _reduction(size_average, reduce, reduction))


@saves("input", "target")
def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean"
) -> Tensor:
    """Scores of the target classes, up to the first -1, should be above those of the others by 1."""
    known_reduction(_reduction(size_average, reduce, reduction))
    if target.shape != input.shape:
        raise ArgumentError(f"multilabel_margin_loss: expected targets of the input's shape {input.shape}, got {target.shape}")
    x, places = (t if t.ndim == 2 else t.reshape(1, -1) for t in (input, target))
    listed = (places >= 0).to(int64).cumprod(axis=1)
    hot = (places.unsqueeze(2) == arange(x.shape[1])) & (listed > 0).unsqueeze(2)  # (batch, listed, classes)
    others = ~hot.any(axis=1)
    scores = x.gather(1, places.clamp(min=0))
    terms = (1.0 - (scores.unsqueeze(2) - x.unsqueeze(1))).relu()
    counted = (listed > 0).unsqueeze(2) & others.unsqueeze(1)
    loss = where(counted, terms, 0.0).sum(axis=(1, 2)) / x.shape[1]
    return reduced(loss if input.ndim == 2 else loss.squeeze(0), _reduction(size_average, reduce, reduction))


@saves("input")
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean over classes of the binary cross-entropy of scores."""
    input, target = _wide(input, target)
    loss = -(target * logsigmoid(input) + (1.0 - target) * logsigmoid(-input))
    return reduced((loss if weight is None else loss * weight).mean(axis=-1), _reduction(size_average, reduce, reduction))


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: Any = None, eps: float = 1e-8,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Minus the Poisson log-likelihood of counts; `full` adds Stirling's approximation of the term without the input."""
    input, target = _wide(input, target)
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        safe = where(target > 1, target, 1.0)
        loss = loss + where(target > 1, safe * safe.log() - safe + 0.5 * (2 * math.pi * safe).log(), 0.0)
    return reduced(loss, _reduction(size_average, reduce, reduction))


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Minus the log-likelihood of targets under a Gaussian with the input as mean and a variance."""
    if isinstance(var, Tensor):
        input, target, given = _wide(input, target, var)
        if given.ndim == input.ndim - 1 and given.shape == input.shape[:-1]:
            given = given.unsqueeze(-1)
        spread = given + (given.maximum(eps) - given).detach()  # a lower bound without an effect on the gradient
    else:
        spread = input.detach() * 0 + max(float(var), eps)
    loss = (spread.log() + (input - target) ** 2 / spread) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


@saves("log_probs", "targets")
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Minus the log-probability of all alignments of the targets with log-probabilities (time, batch, classes), without blanks
    and repeats. Targets are (batch, longest), or all one after another; for these, lengths that are a tensor are read."""
    known_reduction(reduction)
    single = log_probs.ndim == 2
    p = log_probs.unsqueeze(1) if single else log_probs
    if targets.ndim == 1:
        targets = targets.unsqueeze(0) if single else _rows(targets, target_lengths)
    most = p.shape[0], targets.shape[-1]
    steps, words = (_lengths(x, *m) for x, *m in ((input_lengths, "input", most[0]), (target_lengths, "target", most[1])))
    loss, _ = apply(TABLE["ctc"], (p, targets.to(int64), steps, words), (blank, bool(zero_infinity), True))
    if not zero_infinity:
        note_saved(loss, loss)
    if reduction == "mean":
        return (loss / words.clamp(min=1).to(loss.dtype)).mean()
    return reduced(loss.squeeze(0) if single else loss, reduction)


def _lengths(given: Any, name: str, most: int) -> Tensor:
    """Lengths as a tensor; numbers are checked here, a tensor by the kernel."""
    if isinstance(given, Tensor):
        return given.reshape(-1).to(int64)
    numbers = [int(n) for n in (given if hasattr(given, "__len__") else [given])]
    if numbers and not 0 <= min(numbers) <= max(numbers) <= most:
        raise ArgumentError(f"ctc_loss: expected {name} lengths of 0 to {most}, got {min(numbers)} to {max(numbers)}")
    return tensor(numbers, dtype=int64)


def _rows(targets: Tensor, lengths: Any) -> Tensor:
    """Targets one after another as (batch, longest)."""
    sizes = np.array(lengths.tolist() if isinstance(lengths, Tensor) else lengths, np.int64).reshape(-1)
    if sizes.sum() != targets.shape[0] or sizes.size and sizes.min() < 0:
        raise ArgumentError(f"ctc_loss: target lengths of {sizes.sum()} in all for {targets.shape[0]} targets")
    if not targets.shape[0]:
        return targets.reshape(-1, 0) if not sizes.size else targets.expand(sizes.size, 0)
    places = (np.cumsum(sizes) - sizes)[:, None] + np.arange(sizes.max())
    return targets[tensor(np.minimum(places, targets.shape[0] - 1))]
