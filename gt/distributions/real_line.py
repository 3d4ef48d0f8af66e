"""Distributions over the real line, by location and scale."""

from __future__ import annotations

import math
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.elementwise import where
from gt.client.functions.random import rand, randn
from gt.client.grad_mode import no_grad
from gt.distributions import constraints
from gt.distributions.distribution import Distribution, ExponentialFamily, Shape, broadcast_all
from gt.distributions.sampling import first_accepted, standard_gamma, uniform
from gt.spec import float64

EULER = 0.57721566490153286060
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class LocationScale(Distribution):
    """`loc` and `scale` of a standard distribution."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def standard(self, shape: tuple[int, ...]) -> Tensor:
        """Samples at location 0 and scale 1."""
        raise NotImplementedError

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.loc + self.standard(self._extended_shape(sample_shape)) * self.scale

    def standardized(self, value: Tensor) -> Tensor:
        return (self._validate_sample(value) - self.loc) / self.scale


class Normal(LocationScale, ExponentialFamily):
    """
    >>> gt.distributions.Normal(0.0, 1.0).log_prob(gt.tensor(0.0))
    tensor(-0.9189)
    """

    mean = mode = property(lambda self: self.loc)
    stddev = property(lambda self: self.scale)
    variance = property(lambda self: self.scale**2)

    def standard(self, shape: tuple[int, ...]) -> Tensor:
        return randn(shape, dtype=self.loc.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        z = self.standardized(value)
        return -0.5 * z * z - self.scale.log() - HALF_LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        return 0.5 * (1 + (self.standardized(value) / math.sqrt(2)).erf())

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * (2 * value - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + HALF_LOG_2PI + self.scale.log()


class Laplace(LocationScale):
    mean = mode = property(lambda self: self.loc)
    variance = property(lambda self: 2 * self.scale**2)
    stddev = property(lambda self: math.sqrt(2) * self.scale)

    def standard(self, shape: tuple[int, ...]) -> Tensor:
        u = 2 * uniform(shape, self.loc.dtype) - 1
        return -u.sign() * (-u.abs()).log1p()

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - self.standardized(value).abs()

    def cdf(self, value: Tensor) -> Tensor:
        z = self.standardized(value)
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        term = value - 0.5
        return self.loc - self.scale * term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Cauchy(LocationScale):
    mode = property(lambda self: self.loc)
    mean = property(lambda self: full_like(self.loc, math.nan))
    variance = property(lambda self: full_like(self.loc, math.inf))

    def standard(self, shape: tuple[int, ...]) -> Tensor:
        return (math.pi * (uniform(shape, self.loc.dtype) - 0.5)).tan()

    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - (self.standardized(value) ** 2).log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return self.standardized(value).atan() / math.pi + 0.5

    def icdf(self, value: Tensor) -> Tensor:
        return (math.pi * (value - 0.5)).tan() * self.scale + self.loc

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()


class Gumbel(LocationScale):
    mode = property(lambda self: self.loc)
    mean = property(lambda self: self.loc + self.scale * EULER)
    stddev = property(lambda self: math.pi / math.sqrt(6) * self.scale)
    variance = property(lambda self: self.stddev**2)

    def standard(self, shape: tuple[int, ...]) -> Tensor:
        return -(-uniform(shape, self.loc.dtype).log()).log()

    def log_prob(self, value: Tensor) -> Tensor:
        y = -self.standardized(value)
        return y - y.exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        return (-(-self.standardized(value)).exp()).exp()

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc - self.scale * (-value.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


class StudentT(Distribution):
    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}
    support = constraints.real
    has_rsample = True
    mode = property(lambda self: self.loc)

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return where(self.df > 1, self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        finite = self.scale**2 * self.df / (self.df - 2).clamp(min=1e-30)
        return where(self.df > 2, finite, where(self.df > 1, full_like(self.df, math.inf), math.nan))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        chi2 = 2 * standard_gamma((self.df / 2).expand(shape))
        return self.loc + self.scale * randn(shape, dtype=self.df.dtype) * (chi2 / self.df) ** -0.5

    def log_prob(self, value: Tensor) -> Tensor:
        y = (self._validate_sample(value) - self.loc) / self.scale
        norm = self.scale.log() + 0.5 * self.df.log() + 0.5 * math.log(math.pi)
        norm = norm + (self.df / 2).lgamma() - ((self.df + 1) / 2).lgamma()
        return -0.5 * (self.df + 1) * (y * y / self.df).log1p() - norm

    def entropy(self) -> Tensor:
        half, more = self.df / 2, (self.df + 1) / 2
        log_beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        return self.scale.log() + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log() + log_beta


class Uniform(Distribution):
    """Even between `low` and `high`."""

    arg_constraints = {"low": constraints.dependent, "high": constraints.dependent}
    has_rsample = True
    mean = property(lambda self: (self.high + self.low) / 2)
    variance = property(lambda self: (self.high - self.low) ** 2 / 12)
    stddev = property(lambda self: (self.high - self.low) / math.sqrt(12))
    mode = property(lambda self: math.nan * self.high)

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        if isinstance(low, (int, float)) and isinstance(high, (int, float)) and validate_args is not False and not low < high:
            raise ValueError(f"Uniform: low is {low} and high {high}: expected low < high")
        self.low, self.high = broadcast_all(low, high)
        super().__init__(self.low.shape, validate_args=validate_args)
        if self._validate_args and not {"low", "high"} <= self._numbers:
            self._require(constraints.less_than(self.high), self.low, "low is not below high everywhere")

    @constraints.dependent_property
    def support(self) -> Any:
        return constraints.interval(self.low, self.high)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.low + rand(self._extended_shape(sample_shape), dtype=self.low.dtype) * (self.high - self.low)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        inside = (self.low <= value) & (self.high > value)
        return inside.to(self.low.dtype).log() - (self.high - self.low).log()

    def cdf(self, value: Tensor) -> Tensor:
        return ((self._validate_sample(value) - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return value * (self.high - self.low) + self.low

    def entropy(self) -> Tensor:
        return (self.high - self.low).log()


class VonMises(Distribution):
    """The normal distribution's counterpart on a circle."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    mean = mode = property(lambda self: self.loc)

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def _scaled_bessel(self, order: int) -> Tensor:
        """The modified Bessel function times exp(-x), for large x by its expansion."""
        x = self.concentration
        near = x.clamp(max=30.0)
        small = (near.i0() if order == 0 else near.i1()) * (-near).exp()
        far, mu = x.clamp(min=30.0), 4.0 * order * order
        series, term = full_like(far, 1.0), full_like(far, 1.0)
        for k in range(1, 8):
            term = term * -(mu - (2 * k - 1) ** 2) / (k * 8.0 * far)
            series = series + term
        return where(x < 30.0, small, series / (2 * math.pi * far).sqrt())

    @property
    def variance(self) -> Tensor:
        """The circular variance."""
        return 1 - self._scaled_bessel(1) / self._scaled_bessel(0)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        # exp(-concentration) is taken out of the Bessel function
        return self.concentration * ((value - self.loc).cos() - 1) - math.log(2 * math.pi) - self._scaled_bessel(0).log()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Best and Fisher's rejection from a wrapped Cauchy distribution."""
        with no_grad():
            shape = self._extended_shape(sample_shape)
            k = self.concentration.to(float64)
            tau = 1 + (1 + 4 * k * k).sqrt()
            rho = (tau - (2 * tau).sqrt()) / (2 * k)
            r = where(k < 1e-5, 1 / k, (1 + rho * rho) / (2 * rho))
            u = [uniform((32, *shape), float64) for _ in range(3)]
            z = (math.pi * u[0]).cos()
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            accepted = (c * (2 - c) - u[1] > 0) | ((c / u[1]).log() + 1 - c >= 0)
            angle = (u[2] - 0.5).sign() * f.clamp(-1, 1).acos()
            found = first_accepted(angle, accepted) + self.loc.to(float64)
            return ((found + math.pi) % (2 * math.pi) - math.pi).to(self.loc.dtype)
