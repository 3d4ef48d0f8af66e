"""Distributions over counts and classes."""

from __future__ import annotations

import math
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import arange, full_like
from gt.client.functions.elementwise import where
from gt.client.functions.random import rand
from gt.client.grad_mode import enable_grad, no_grad
from gt.distributions import constraints
from gt.distributions.distribution import Distribution, ExponentialFamily, Shape, broadcast_all
from gt.distributions.sampling import binomial, poisson, standard_gamma, uniform
from gt.nn.functional import binary_cross_entropy_with_logits, softplus

EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def clamped(probs: Tensor) -> Tensor:
    """Chances a rounding error away from 0 and 1, so that logarithms are finite."""
    eps = EPS[probs.dtype.name]
    return probs.clamp(eps, 1 - eps)


class ByChance(Distribution):
    """Parameters `probs` or `logits`: the one is computed from the other."""

    binary = True
    _probs: Tensor
    _logits: Tensor
    _param: Tensor

    def _take(self, probs: Any, logits: Any, *others: Any) -> list[Tensor]:
        if (probs is None) == (logits is None):
            raise ValueError(
                f"{type(self).__name__} takes either probs or logits, not {'both' if probs is not None else 'neither'}"
            )
        name = "probs" if logits is None else "logits"
        value, *rest = broadcast_all(probs if logits is None else logits, *others)
        setattr(self, f"_{name}", value)
        self._given, self._param = (name,), value
        return rest

    @property
    def probs(self) -> Tensor:
        if "_probs" not in self.__dict__:
            with enable_grad():  # kept for log_prob(), and sample() may be the first to ask
                self._probs = self._logits.sigmoid() if self.binary else self._logits.softmax(-1)
        return self._probs

    @property
    def logits(self) -> Tensor:
        if "_logits" not in self.__dict__:
            with enable_grad():
                safe = clamped(self._probs)
                self._logits = safe.log() - (-safe).log1p() if self.binary else safe.log()
        return self._logits

    @property
    def param_shape(self) -> Any:
        return self._param.shape


CHANCE = {"probs": constraints.unit_interval, "logits": constraints.real}


class Bernoulli(ByChance, ExponentialFamily):
    arg_constraints = CHANCE
    support = constraints.boolean
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        found = (self.probs >= 0.5).to(self.probs.dtype)
        return where(self.probs == 0.5, math.nan, found)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            drawn = rand(self._extended_shape(sample_shape), dtype=self._param.dtype)
            return (drawn < self.probs).to(self._param.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._validate_sample(value))
        return -binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self._param.dtype).reshape((2, *(1 for _ in self._batch_shape)))
        return values.expand((2, *self._batch_shape)) if expand else values


class Geometric(ByChance):
    """Failures before the first success."""

    arg_constraints = CHANCE
    support = constraints.nonnegative_integer
    mode = property(lambda self: full_like(self.probs, 0.0))
    mean = property(lambda self: 1 / self.probs - 1)
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits)
        super().__init__(self._param.shape, validate_args=validate_args)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            u = uniform(self._extended_shape(sample_shape), self._param.dtype)
            return (u.log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        value, probs = broadcast_all(self._validate_sample(value), self.probs)
        probs = where((probs == 1) & (value == 0), 0.0, probs)
        return value * (-probs).log1p() + self.probs.log()

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs


class Binomial(ByChance):
    arg_constraints = {"total_count": constraints.nonnegative_integer, **CHANCE}
    has_enumerate_support = True

    def __init__(self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (self.total_count,) = self._take(probs, logits, total_count)
        self.total_count = self.total_count.to(self._param.dtype)
        self._most = total_count if isinstance(total_count, int) else None
        self._given = ("total_count", *(self._given or ()))
        super().__init__(self._param.shape, validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> Any:
        return constraints.integer_interval(0, self.total_count)

    mean = property(lambda self: self.total_count * self.probs)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))
    mode = property(lambda self: ((self.total_count + 1) * self.probs).floor().minimum(self.total_count))

    def _largest(self) -> int:
        """The most trials of any element; where they came as a tensor, it is read."""
        if self._most is None:
            self._most = int(self.total_count.max().item())
        return self._most

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            return binomial(self.total_count.expand(shape), self.probs.expand(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value, n = self._validate_sample(value), self.total_count
        choose = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        positive = self.logits.clamp(min=0)
        return choose + value * self.logits - n * (positive + (-self.logits.abs()).exp().log1p())

    def entropy(self) -> Tensor:
        values = self.enumerate_support(False)
        log_prob = self.log_prob(values)
        return -(log_prob.exp() * log_prob).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        most = self._largest()
        if bool((self.total_count != most).any()):
            raise NotImplementedError("Binomial has one support only where all total_counts are equal")
        values = arange(most + 1, dtype=self._param.dtype).reshape((-1, *(1 for _ in self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values


class NegativeBinomial(ByChance):
    """Successes before `total_count` failures."""

    arg_constraints = {"total_count": constraints.greater_than_eq(0), "probs": constraints.half_open_interval(0.0, 1.0),
                       "logits": constraints.real}  # fmt: skip
    support = constraints.nonnegative_integer

    def __init__(self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        (self.total_count,) = self._take(probs, logits, total_count)
        self.total_count = self.total_count.to(self._param.dtype)
        self._given = ("total_count", *(self._given or ()))
        super().__init__(self._param.shape, validate_args=validate_args)

    mean = property(lambda self: self.total_count * self.logits.exp())
    variance = property(lambda self: self.mean / (-self.logits).sigmoid())
    mode = property(lambda self: ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            shape = self._extended_shape(sample_shape)
            return poisson(standard_gamma(self.total_count.expand(shape)) * self.logits.exp())

    def log_prob(self, value: Tensor) -> Tensor:
        value, n = self._validate_sample(value), self.total_count
        chance = n * -softplus(self.logits) - value * softplus(-self.logits)
        ways = -(n + value).lgamma() + (1.0 + value).lgamma() + n.lgamma()
        return chance - where(n + value == 0, 0.0, ways)


class Poisson(ExponentialFamily):
    arg_constraints = {"rate": constraints.nonnegative}
    support = constraints.nonnegative_integer
    mean = variance = property(lambda self: self.rate)
    mode = property(lambda self: self.rate.floor())

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return poisson(self.rate.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        rate, value = broadcast_all(self.rate, self._validate_sample(value))
        return value.xlogy(rate) - rate - (value + 1).lgamma()


class ContinuousBernoulli(ByChance):
    """Numbers in [0, 1] whose log density is linear."""

    arg_constraints = CHANCE
    support = constraints.unit_interval
    has_rsample = True

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._take(probs, logits)
        if "_probs" in self.__dict__:
            self._probs = self._param = clamped(self._probs)
        self._lims = lims
        super().__init__(self._param.shape, validate_args=validate_args)

    def _outside(self) -> tuple[Tensor, Tensor]:
        """Where chances are far enough from a half for formulas that divide by the distance, and chances cut to there."""
        low, high = self._lims
        outside = (self.probs <= low) | (self.probs > high)
        return outside, where(outside, self.probs, low)

    def _log_norm(self) -> Tensor:
        outside, cut = self._outside()
        below, above = where(cut <= 0.5, cut, 0.0), where(cut >= 0.5, cut, 1.0)
        log_norm = ((-cut).log1p() - cut.log()).abs().log() - where(cut <= 0.5, (-2 * below).log1p(), (2 * above - 1).log())
        x = (self.probs - 0.5) ** 2
        return where(outside, log_norm, math.log(2.0) + (4 / 3 + 104 / 45 * x) * x)

    @property
    def mean(self) -> Tensor:
        outside, cut = self._outside()
        x = self.probs - 0.5
        return where(outside, cut / (2 * cut - 1) + 1 / ((-cut).log1p() - cut.log()), 0.5 + (1 / 3 + 16 / 45 * x**2) * x)

    @property
    def variance(self) -> Tensor:
        outside, cut = self._outside()
        x = (self.probs - 0.5) ** 2
        far = cut * (cut - 1) / (1 - 2 * cut) ** 2 + 1 / ((-cut).log1p() - cut.log()) ** 2
        return where(outside, far, 1 / 12 - (1 / 15 - 128 / 945 * x) * x)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self._param.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._validate_sample(value))
        return -binary_cross_entropy_with_logits(logits, value, reduction="none") + self._log_norm()

    def cdf(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        outside, cut = self._outside()
        far = (cut**value * (1 - cut) ** (1 - value) + cut - 1) / (2 * cut - 1)
        found = where(outside, far, value)
        return where(value <= 0, 0.0, where(value >= 1, 1.0, found))

    def icdf(self, value: Tensor) -> Tensor:
        outside, cut = self._outside()
        far = ((-cut + value * (2 * cut - 1)).log1p() - (-cut).log1p()) / (cut.log() - (-cut).log1p())
        return where(outside, far, value)

    def entropy(self) -> Tensor:
        log_no, log_yes = (-self.probs).log1p(), self.probs.log()
        return self.mean * (log_no - log_yes) - self._log_norm() - log_no
