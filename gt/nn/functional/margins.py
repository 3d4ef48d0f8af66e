"""Losses of distances and margins, likelihoods of counts and Gaussians, and CTC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import arange, full, tensor
from gt.client.functions.elementwise import where
from gt.client.functions.join import cat, stack
from gt.client.saved import note_saved, saves
from gt.errors import ArgumentError
from gt.nn.functional.activations import logsigmoid, softplus
from gt.nn.functional.loss import _reduction, _wide, into_dtype, known_reduction, reduced
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
    """Minus the log-probability of all alignments of the targets (batch, longest) with log-probabilities (time, batch,
    classes), without blanks and repeats. Lengths are numbers."""
    single = log_probs.ndim == 2
    p = log_probs.unsqueeze(1) if single else log_probs
    time, batch, _ = p.shape
    steps, sizes = ([int(n) for n in (x.reshape(-1).tolist() if isinstance(x, Tensor) else x if hasattr(x, "__len__") else [x])]
                    for x in (input_lengths, target_lengths))  # fmt: skip
    words = _padded(targets, sizes)
    width = 2 * words.shape[1] + 1
    blanks = full((batch, words.shape[1]), blank, dtype=int64)
    marks = cat([stack([blanks, words], axis=2).reshape(batch, -1), full((batch, 1), blank, dtype=int64)], axis=1)
    emitted = p.gather(2, marks.unsqueeze(0).expand(time, batch, width))  # (time, batch, marks)
    none = float("-inf")
    leap = (marks != blank) & (cat([full((batch, 2), blank, dtype=int64), marks], axis=1)[:, :width] != marks)
    start = arange(width) < 2
    alpha = where(start, emitted[0], none)
    reached = [alpha]
    for t in range(1, time):
        before = cat([full((batch, 2), none, dtype=p.dtype), alpha], axis=1)
        ways = stack([alpha, before[:, 1 : width + 1], where(leap, before[:, :width], none)])
        alpha = _log_sum(ways) + emitted[t]
        reached.append(alpha)
    last = stack([reached[n - 1][b] for b, n in enumerate(steps)])
    ends = [stack([last[b, 2 * n], last[b, 2 * n - 1] if n else full((), none, dtype=p.dtype)]) for b, n in enumerate(sizes)]
    loss = -_log_sum(stack(ends, axis=1)) + _normalised(p, steps)
    note_saved(loss, loss)
    if zero_infinity:
        loss = where(loss == math.inf, 0.0, loss)
    if reduction == "mean":
        return (loss / _lengths(sizes, loss)).mean()
    return reduced(loss.squeeze(0) if single else loss, reduction)


def _normalised(p: Tensor, steps: list[int]) -> Any:
    """A value of 0 with the gradient of the log-softmax normalisation, which PyTorch's gradient includes."""
    if not p.requires_grad:
        return 0.0
    chances = p.exp()
    within = arange(p.shape[0]).unsqueeze(1) < _lengths(steps, p, 0).to(int64)  # (time, batch)
    return where(within, (chances - chances.detach()).sum(axis=2), 0.0).sum(axis=0)


def _lengths(sizes: list[int], like: Tensor, least: int = 1) -> Tensor:
    return tensor([float(max(n, least)) for n in sizes], dtype=like.dtype)


def _padded(targets: Tensor, sizes: list[int]) -> Tensor:
    """Targets as (batch, longest), from that shape or concatenated."""
    if targets.ndim == 2:
        return targets
    longest, at, rows = max(sizes), 0, []
    for n in sizes:
        rows.append(cat([targets[at : at + n], full((longest - n,), 0, dtype=int64)]))
        at += n
    return stack(rows)


def _log_sum(x: Tensor) -> Tensor:
    """The logsumexp over the first axis; if all are -inf, -inf with a gradient of 0."""
    top = x.amax(0, keepdims=True).detach()
    top = where(top == -math.inf, 0.0, top)
    total = (x - top).exp().sum(axis=0)
    return where(total > 0, where(total > 0, total, 1.0).log() + top.squeeze(0), -math.inf)
