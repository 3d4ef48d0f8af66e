"""The CTC loss: minus the log-probability of all alignments of some words (class numbers) with a sequence of log-probabilities
of classes, one of which is the blank. With a blank before, between and behind them, n words are 2 n + 1 marks; an alignment
stays at a mark, goes to the next one, or leaps over a blank between two different words.

Sequences and their words are padded to one length; both lengths are values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.ops.table import Kind, Rule, Values, op
from gt.spec import Shard, Spec, float16, float32, int64

NONE = float("-inf")
TRANSITION = 2e-8  # seconds to add up the ways to a mark


class _Arrays:
    """The operations of the recursion, over an engine's arrays."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def full(self, like: Any, shape: tuple, value: Any) -> Any:
        return self.xp.full(shape, value, dtype=like.dtype)

    def count(self, like: Any, n: int) -> Any:
        return self.xp.arange(0, n)

    def cat(self, parts: Sequence[Any], axis: int) -> Any:
        return self.xp.concat(tuple(parts), axis=axis)

    def where(self, c: Any, a: Any, b: Any) -> Any:
        return self.xp.where(c, a, b)

    def exp(self, a: Any) -> Any:
        return self.xp.exp(a)

    def reshape(self, a: Any, shape: tuple) -> Any:
        return self.xp.reshape(a, shape)

    def take(self, a: Any, places: Any, shape: tuple, axis: int) -> Any:
        return self.xp.take_along_axis(a, self.xp.broadcast_to(places, shape), axis)

    def add_at(self, a: Any, places: Any, values: Any) -> Any:
        first, second = (self.xp.reshape(self.xp.arange(0, n), s) for n, s in zip(a.shape, ((-1, 1, 1), (1, -1, 1))))
        return self.xp.add_at(a, (first, second, self.xp.broadcast_to(places, values.shape)), values)

    def log_sum(self, *parts: Any) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total = self.xp.logaddexp(total, part)
        return total


class _Tensors:
    """The same over tensors, for gradients of gradients."""

    def full(self, like: Any, shape: tuple, value: Any) -> Any:
        return like.new_zeros(shape) + value

    def count(self, like: Any, n: int) -> Any:
        return (like.new_zeros((n,)) + 1).cumsum(axis=0) - 1

    def cat(self, parts: Sequence[Any], axis: int) -> Any:
        return parts[0].op("cat", *parts[1:], axis=axis)

    def where(self, c: Any, a: Any, b: Any) -> Any:
        return c.pick(a, b)

    def exp(self, a: Any) -> Any:
        return a.exp()

    def reshape(self, a: Any, shape: tuple) -> Any:
        return a.reshape(shape)

    def take(self, a: Any, places: Any, shape: tuple, axis: int) -> Any:
        return a.op("gather", places.op("expand", shape=shape), axis=axis)

    def add_at(self, a: Any, places: Any, values: Any) -> Any:
        return a.op("scatter_add", places.op("expand", shape=values.shape), values, axis=2)

    def log_sum(self, *parts: Any) -> Any:
        """If all are -inf, -inf with a gradient of 0."""
        top = parts[0]
        for part in parts[1:]:
            top = (part > top).pick(part, top)
        top = (top == NONE).pick(0.0, top).detach()
        total = sum((part - top).exp() for part in parts)
        return (total > 0).pick((total > 0).pick(total, 1.0).log() + top, NONE)


class _Lattice:
    """The marks of a batch, and the masks and log-probabilities that each step reads."""

    def __init__(self, ns: Any, p: Any, targets: Any, steps: Any, words: Any, blank: int) -> None:
        self.ns, self.p, self.blank = ns, p, blank
        self.time, self.batch, self.classes = p.shape
        most = targets.shape[1]
        self.width = 2 * most + 1
        self.steps, self.words = ns.reshape(steps, (-1, 1)), ns.reshape(words, (-1, 1))
        padding = ns.count(targets, most) >= self.words
        targets = ns.where(padding, blank, targets)
        targets = ns.where(targets < 0, self.classes, targets)  # no class, instead of one from the end
        blanks = ns.full(targets, (self.batch, most, 1), blank)
        pairs = ns.reshape(ns.cat((blanks, ns.reshape(targets, (self.batch, most, 1))), 2), (self.batch, 2 * most))
        last = ns.full(targets, (self.batch, 1), blank)
        self.marks = ns.cat((pairs, last), 1)
        two = ns.full(targets, (self.batch, min(2, self.width)), blank)
        before = ns.cat((two, self.marks[:, : max(self.width - 2, 0)]), 1)
        self.leap = (self.marks != blank) & (self.marks != before)  # whether a mark is reached from the last but one
        self.at = ns.count(targets, self.width)
        shape = (self.time, self.batch, self.width)
        self.emitted = ns.take(p, ns.reshape(self.marks, (1, self.batch, self.width)), shape, 2)

    def _shifted(self, a: Any, n: int) -> Any:
        """The values of the marks n before."""
        none = self.ns.full(a, (self.batch, min(n, self.width)), NONE)
        return self.ns.cat((none, a[:, : max(self.width - n, 0)]), 1)

    def _ahead(self, a: Any, n: int) -> Any:
        """The values of the marks n behind."""
        none = self.ns.full(a, (self.batch, min(n, self.width)), NONE)
        return self.ns.cat((a[:, min(n, self.width) :], none), 1)

    def prefixes(self) -> list[Any]:
        """For each step, the log-probability of all alignments up to it that are at each mark then; -inf past the lengths."""
        ns, inside = self.ns, self.at <= 2 * self.words
        found: list[Any] = []
        for t in range(self.time):
            if not t:
                ways = ns.where(self.at < 2, 0.0, self.full())
            else:
                a = found[-1]
                ways = ns.log_sum(a, self._shifted(a, 1), ns.where(self.leap, self._shifted(a, 2), NONE))
            found.append(ns.where(inside & (self.steps > t), ways + self.emitted[t], NONE))
        return found

    def suffixes(self) -> list[Any]:
        """The same from each step on to the end."""
        ns = self.ns
        end = (self.at == 2 * self.words) | (self.at == 2 * self.words - 1)
        start, leap = ns.where(end, 0.0, self.full()), self._leap_ahead()
        found: list[Any] = [None] * self.time
        a = self.full()
        for t in range(self.time - 1, -1, -1):
            ways = ns.log_sum(a, self._ahead(a, 1), ns.where(leap, self._ahead(a, 2), NONE))
            ways = ns.where(self.steps == t + 1, start, ways)
            a = found[t] = ns.where(self.steps > t, ways + self.emitted[t], NONE)
        return found

    def _leap_ahead(self) -> Any:
        """Whether the next mark but one is reached by a leap."""
        ns, n = self.ns, min(2, self.width)
        return ns.cat((self.leap[:, n:], ns.full(self.marks, (self.batch, n), 0) > 0), 1)

    def full(self) -> Any:
        return self.ns.full(self.p, (self.batch, self.width), NONE)

    def together(self, of: list[Any]) -> Any:
        """(batch, time, marks)."""
        ns = self.ns
        return ns.cat([ns.reshape(a, (self.batch, 1, self.width)) for a in of], 1)

    def loss(self, alpha: Any) -> Any:
        ns, shape = self.ns, (self.batch, 1)
        there = ns.where(self.steps > 0, self.steps - 1, 0)
        there = ns.where(there < self.time, there, self.time - 1)
        there = ns.reshape(there, (self.batch, 1, 1))
        last = ns.reshape(ns.take(alpha, there, (self.batch, 1, self.width), 1), (self.batch, self.width))
        end = ns.where(2 * self.words < self.width, 2 * self.words, self.width - 1)
        word = ns.take(last, ns.where(end > 0, end - 1, 0), shape, 1)
        total = ns.log_sum(ns.take(last, end, shape, 1), ns.where(self.words > 0, word, NONE))
        empty = ns.where(self.words == 0, 0.0, ns.full(self.p, shape, NONE))
        return ns.reshape(-ns.where(self.steps > 0, total, empty), (self.batch,))

    def gradient(self, g: Any, alpha: Any, zero_infinity: bool, normalised: bool) -> Any:
        """Minus the probability that an alignment is at a class in each step; of normalised log-probabilities, as PyTorch has
        it, with the gradient of their normalisation. Where the loss is infinite, nan or 0."""
        ns, p = self.ns, self.p
        loss = ns.reshape(self.loss(alpha), (self.batch, 1))
        endless = loss == -NONE
        shares = []
        for t, beta in enumerate(self.suffixes()):
            both = alpha[:, t] + beta
            counted = both > NONE
            log = ns.where(counted, both, 0.0) - ns.where(counted, self.emitted[t], 0.0) + ns.where(endless, 0.0, loss)
            shares.append(ns.reshape(ns.where(counted, ns.exp(log), 0.0), (1, self.batch, self.width)))
        zeros = ns.full(p, p.shape, 0.0)
        share = ns.add_at(zeros, ns.reshape(self.marks, (1, self.batch, self.width)), ns.cat(shares, 0))
        found = ((ns.exp(p) if normalised else 0.0) - share) * ns.reshape(g, (1, self.batch, 1))
        found = ns.where(ns.reshape(endless, (1, self.batch, 1)), 0.0 if zero_infinity else float("nan"), found)
        within = ns.reshape(ns.count(self.marks, self.time), (-1, 1, 1)) < ns.reshape(self.steps, (1, self.batch, 1))
        return ns.where(within, found, 0.0)


def _shape(p: Spec, targets: Spec, steps: Spec, words: Spec, *, blank: int, zero_infinity: bool, normalised: bool) -> Any:
    if p.dtype.rank != 2 or any(s.dtype is not int64 for s in (targets, steps, words)):
        found = ", ".join(s.dtype.name for s in (p, targets, steps, words))
        raise TypeError(f"ctc_loss: expected floating-point log-probabilities, int64 targets and lengths, got {found}")
    if p.ndim != 3 or not p.shape[0] or targets.ndim != 2 or targets.shape[0] != p.shape[1]:
        raise ValueError(
            "ctc_loss: expected log-probabilities (time, batch, classes) and targets (batch, words), "
            f"got {p.shape} and {targets.shape}"
        )
    if not steps.shape == words.shape == (p.shape[1],):
        raise ValueError(f"ctc_loss: expected {p.shape[1]} lengths of inputs and of targets, got {steps.shape}, {words.shape}")
    if type(blank) is not int or not 0 <= blank < p.shape[2]:
        raise ValueError(f"ctc_loss: blank is {blank}: expected one of {p.shape[2]} classes")
    wide = p.dtype if p.dtype.size >= 4 else float32
    return Spec((p.shape[1],), p.dtype), Spec((p.shape[1], p.shape[0], 2 * targets.shape[1] + 1), wide)


def _kernel(xp, p, targets, steps, words, *, blank, zero_infinity, normalised):
    lattice = _Lattice(_Arrays(xp), p, targets, steps, words, blank)
    alpha = lattice.together(lattice.prefixes())
    loss = lattice.loss(alpha)
    return xp.where(loss == -NONE, 0.0, loss) if zero_infinity else loss, alpha


def _grad_shape(g: Spec, alpha: Spec, *ins: Spec, **statics: Any) -> Spec:
    loss, reached = _shape(*ins, **statics)
    if (g, alpha) != (loss, reached):
        raise ValueError(f"the gradient of ctc_loss: expected {loss} and {reached}, got {g} and {alpha}")
    return ins[0]


def _grad_kernel(xp, g, alpha, p, targets, steps, words, *, blank, zero_infinity, normalised):
    return _Lattice(_Arrays(xp), p, targets, steps, words, blank).gradient(g, alpha, zero_infinity, normalised)


def _lower_grad(g, alpha, p, targets, steps, words, blank, zero_infinity, normalised):
    lattice = _Lattice(_Tensors(), p, targets, steps, words, blank)
    return lattice.gradient(g, lattice.together(lattice.prefixes()), zero_infinity, normalised)


def _pull(gs, ys, ins, **statics):
    return [gs[0].op("ctc_grad", ys[1], *ins, **statics)]


def _rules(kind: Kind) -> list[Rule]:
    """Sequences are independent."""
    return [((Shard(1), Shard(0), Shard(0), Shard(0)), (Shard(0), Shard(0)))]


def _grad_rules(kind: Kind) -> list[Rule]:
    return [((Shard(0), Shard(0), Shard(1), Shard(0), Shard(0), Shard(0)), (Shard(1),))]


def _seconds(kind: Kind) -> float:
    reached = next(s for s in (*kind.outs, *kind.ins) if s.ndim == 3 and s.shape[0] == kind.ins[-1].shape[0])
    return TRANSITION * reached.numel


P, WORDS = Values(Spec((5, 3, 4), float32), -3.0, 0.0), Values(Spec((3, 2), int64), 1, 4)
STEPS, SIZES = Values(Spec((3,), int64), 4, 6), Values(Spec((3,), int64), 1, 3)
STATICS = {"blank": 0, "zero_infinity": False, "normalised": False}
LAST = {"blank": 3, "zero_infinity": True, "normalised": False}
EARLIER = Values(Spec((3, 2), int64), 0, 3)
ALPHA = Values(Spec((3, 5, 5), float32), -4.0, -1.0)
HALF = Values(Spec((5, 3, 4), float16), -3.0, 0.0)

op("ctc", compute_seconds=_seconds, autocast="high",
   shape=_shape, shard=_rules, saved=1, keep="inputs saved", grad=_pull, unchecked="c d",
   tries=(((P, WORDS, STEPS, SIZES), STATICS), ((P, EARLIER, STEPS, SIZES), LAST)), kernel=_kernel)  # fmt: skip
op("ctc_grad", compute_seconds=_seconds, shape=_grad_shape, shard=_grad_rules,
   tries=(((Spec((3,), float32), ALPHA, P, WORDS, STEPS, SIZES), STATICS),
          ((Spec((3,), float32), ALPHA, P, EARLIER, STEPS, SIZES), {**LAST, "normalised": True}),
          ((Spec((3,), float16), ALPHA, HALF, WORDS, STEPS, SIZES), STATICS)),
   kernel=_grad_kernel, lower=_lower_grad)  # fmt: skip
