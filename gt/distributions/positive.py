"""Distributions over positive numbers, and over the unit interval."""

from __future__ import annotations

import math
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.elementwise import where
from gt.distributions import constraints
from gt.distributions.distribution import Distribution, ExponentialFamily, Shape, broadcast_all
from gt.distributions.real_line import EULER
from gt.distributions.sampling import standard_gamma, uniform
from gt.ops.table import TABLE


class Exponential(ExponentialFamily):
    arg_constraints = {"rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    mean = stddev = property(lambda self: 1 / self.rate)
    mode = property(lambda self: full_like(self.rate, 0.0))
    variance = property(lambda self: self.rate**-2)

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast_all(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return -uniform(self._extended_shape(sample_shape), self.rate.dtype).log() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * self._validate_sample(value)

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (-self.rate * self._validate_sample(value)).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()


class Gamma(ExponentialFamily):
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.nonnegative
    has_rsample = True
    mean = property(lambda self: self.concentration / self.rate)
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))
    variance = property(lambda self: self.concentration / self.rate**2)

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        return standard_gamma(self.concentration.expand(shape)) / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        power = (self.concentration - 1).xlogy(value)
        return self.concentration.xlogy(self.rate) + power - self.rate * value - self.concentration.lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        return apply(TABLE["igamma"], tuple(broadcast_all(self.concentration, self.rate * self._validate_sample(value))))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()


class Chi2(Gamma):
    """Sums of `df` squares of normal numbers."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (wide,) = broadcast_all(df)
        super().__init__(0.5 * wide, 0.5, validate_args=validate_args)

    @property
    def df(self) -> Tensor:
        return self.concentration * 2


class InverseGamma(Distribution):
    """The reciprocal of a gamma number."""

    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        a = self.concentration
        return where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        return where(a > 2, self.rate**2 / ((a - 1) ** 2 * (a - 2)), math.inf)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.rate / standard_gamma(self.concentration.expand(self._extended_shape(sample_shape)))

    def log_prob(self, value: Tensor) -> Tensor:
        value, a = self._validate_sample(value), self.concentration
        return a * self.rate.log() - a.lgamma() - (a + 1) * value.log() - self.rate / value

    def cdf(self, value: Tensor) -> Tensor:
        return apply(TABLE["igammac"], tuple(broadcast_all(self.concentration, self.rate / self._validate_sample(value))))

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class Weibull(Distribution):
    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast_all(scale, concentration)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * (1 + 1 / self.concentration).lgamma().exp()

    @property
    def mode(self) -> Tensor:
        k = self.concentration
        return self.scale * ((k - 1) / k) ** (1 / k)

    @property
    def variance(self) -> Tensor:
        k = self.concentration
        return self.scale**2 * ((1 + 2 / k).lgamma().exp() - (2 * (1 + 1 / k).lgamma()).exp())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = uniform(self._extended_shape(sample_shape), self.scale.dtype)
        return self.scale * (-u.log()) ** (1 / self.concentration)

    def log_prob(self, value: Tensor) -> Tensor:
        k, z = self.concentration, self._validate_sample(value) / self.scale
        return k.log() - self.scale.log() + (k - 1) * z.log() - z**k

    def cdf(self, value: Tensor) -> Tensor:
        return -(-((self._validate_sample(value) / self.scale) ** self.concentration)).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (-(-value).log1p()) ** (1 / self.concentration)

    def entropy(self) -> Tensor:
        k = self.concentration
        return EULER * (1 - 1 / k) + (self.scale / k).log() + 1


class Pareto(Distribution):
    arg_constraints = {"scale": constraints.positive, "alpha": constraints.positive}
    has_rsample = True
    mode = property(lambda self: self.scale)

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast_all(scale, alpha)
        super().__init__(self.scale.shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def variance(self) -> Tensor:
        a = self.alpha.clamp(min=2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.scale * uniform(self._extended_shape(sample_shape), self.scale.dtype) ** (-1 / self.alpha)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.alpha.log() + self.alpha * self.scale.log() - (self.alpha + 1) * self._validate_sample(value).log()

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (self.scale / self._validate_sample(value)) ** self.alpha

    def icdf(self, value: Tensor) -> Tensor:
        return self.scale * (1 - value) ** (-1 / self.alpha)

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + (1 + 1 / self.alpha)


class GeneralizedPareto(Distribution):
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive, "concentration": constraints.real}
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = broadcast_all(loc, scale, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        upper = where(self.concentration < 0, self.loc - self.scale / self.concentration, math.inf)
        return constraints.interval(self.loc, upper)

    def _bent(self) -> tuple[Tensor, Tensor]:
        """Whether the tail bends, and a concentration that can be divided by."""
        bent = self.concentration.abs() > 1e-8
        return bent, where(bent, self.concentration, 1.0)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.icdf(uniform(self._extended_shape(sample_shape), self.scale.dtype))

    def log_prob(self, value: Tensor) -> Tensor:
        y = (self._validate_sample(value) - self.loc) / self.scale
        bent, k = self._bent()
        return where(bent, -self.scale.log() - (1 / k + 1) * (k * y).log1p(), -self.scale.log() - y)

    def cdf(self, value: Tensor) -> Tensor:
        y = (self._validate_sample(value) - self.loc) / self.scale
        bent, k = self._bent()
        return where(bent, 1 - (1 + k * y) ** (-1 / k), 1 - (-y).exp())

    def icdf(self, value: Tensor) -> Tensor:
        bent, k = self._bent()
        left = 1 - value
        return self.loc + self.scale * where(bent, (left ** (-k) - 1) / k, -left.log())

    @property
    def mean(self) -> Tensor:
        return where(self.concentration < 1, self.loc + self.scale / (1 - self.concentration), math.inf)

    @property
    def variance(self) -> Tensor:
        k = self.concentration
        return where(k < 0.5, self.scale**2 / ((1 - k) ** 2 * (1 - 2 * k)), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.loc

    def entropy(self) -> Tensor:
        return self.scale.log() + self.concentration + 1


class FisherSnedecor(Distribution):
    """The ratio of two chi-squared numbers, each over its degrees of freedom."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Tensor:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return where(self.df1 > 2, found, math.nan)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        return where(b > 4, 2 * b**2 * (a + b - 2) / (a * (b - 2) ** 2 * (b - 4)), math.nan)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        upper, lower = (standard_gamma((df / 2).expand(shape)) * 2 / df for df in (self.df1, self.df2))
        return upper / lower.clamp(min=1e-30)

    def log_prob(self, value: Tensor) -> Tensor:
        value, a, b = self._validate_sample(value), self.df1 * 0.5, self.df2 * 0.5
        ratio = self.df1 / self.df2
        return ((a + b).lgamma() - a.lgamma() - b.lgamma() + a * ratio.log() + (a - 1) * value.log()
                - (a + b) * (ratio * value).log1p())  # fmt: skip


class Kumaraswamy(Distribution):
    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    def _moment(self, n: int) -> Tensor:
        a, b = 1 + n / self.concentration1, self.concentration0
        return (b.log() + a.lgamma() + b.lgamma() - (a + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1) ** 2

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        log_mode = ((a - 1).log() - (a * b - 1).log()) / a
        return where((a < 1) | (b < 1), math.nan, log_mode.exp())

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = uniform(self._extended_shape(sample_shape), self.concentration1.dtype)
        return (1 - u ** (1 / self.concentration0)) ** (1 / self.concentration1)

    def log_prob(self, value: Tensor) -> Tensor:
        value, a, b = self._validate_sample(value), self.concentration1, self.concentration0
        return a.log() + b.log() + (a - 1) * value.log() + (b - 1) * (-(value**a)).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return 1 - (1 - self._validate_sample(value) ** self.concentration1) ** self.concentration0

    def icdf(self, value: Tensor) -> Tensor:
        return (1 - (1 - value) ** (1 / self.concentration0)) ** (1 / self.concentration1)

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return (1 - 1 / b) + (1 - 1 / a) * ((b + 1).digamma() + EULER) - a.log() - b.log()


class Beta(ExponentialFamily):
    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}
    support = constraints.unit_interval
    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = broadcast_all(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def mode(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        inside = (a - 1) / (a + b - 2)
        found = where((a < 1) & (b < 1), math.nan, where(a < 1, full_like(a, 0.0), where(b < 1, full_like(a, 1.0), inside)))
        return where((a == 1) & (b == 1), math.nan, found)

    @property
    def variance(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return a * b / ((a + b) ** 2 * (a + b + 1))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        a, b = (standard_gamma(c.expand(shape)) for c in (self.concentration1, self.concentration0))
        return (a / (a + b)).clamp(1e-37, 1 - 2.0**-24)

    def log_prob(self, value: Tensor) -> Tensor:
        value, a, b = self._validate_sample(value), self.concentration1, self.concentration0
        return (a - 1).xlogy(value) + (b - 1).xlogy(1 - value) + (a + b).lgamma() - a.lgamma() - b.lgamma()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        both = a + b
        log_beta = a.lgamma() + b.lgamma() - both.lgamma()
        return log_beta - (a - 1) * a.digamma() - (b - 1) * b.digamma() + (both - 2) * both.digamma()
