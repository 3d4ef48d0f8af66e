"""Random numbers of distributions that have no inverse in closed form, made of uniform and normal ones, so that they are the
same on every engine and any number of workers. Proposals are drawn a fixed number of times at once and the first that is
accepted is taken: that all are refused happens once in 10^10 values, which then take the first proposal."""

from __future__ import annotations

from typing import Any

from gt.autograd.function import Function
from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.elementwise import where
from gt.client.functions.random import rand, randn
from gt.ops.table import TABLE
from gt.spec import float32, float64

TRIES = 8


def uniform(shape: Any, dtype: Any, generator: Any = None) -> Tensor:
    """Numbers in (0, 1): neither end, so that logarithms are finite."""
    wide = dtype if dtype in (float32, float64) else float32
    return (rand(shape, dtype=wide, generator=generator) + 2.0**-25).to(dtype)


def first_accepted(proposals: Tensor, accepted: Tensor) -> Tensor:
    """Of the proposals along the first axis the first that is accepted."""
    at = accepted.to(float32).argmax(0)
    return proposals.gather(0, at.unsqueeze(0)).squeeze(0)


def _gamma(concentration: Tensor) -> Tensor:
    """Marsaglia and Tsang's method for a concentration of at least 1."""
    d = concentration - 1.0 / 3.0
    c = 1.0 / (9.0 * d).sqrt()
    shape = (TRIES, *concentration.shape)
    x, u = randn(shape, dtype=concentration.dtype), uniform(shape, concentration.dtype)
    v = (1.0 + c * x) ** 3
    accepted = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp(1e-30, 1e30).log())
    return d * first_accepted(v, accepted)


class _StandardGamma(Function):
    """The gradient of a sample by its concentration: how fast the quantile moves, -(dP/da) / p. P's derivative is a central
    difference in double precision."""

    @staticmethod
    def forward(ctx: Any, concentration: Tensor) -> Tensor:
        sample = _gamma(concentration)
        ctx.save_for_backward(concentration, sample)
        return sample

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        concentration, sample = ctx.saved_tensors
        return g * gamma_gradient(concentration, sample)


def gamma_gradient(concentration: Tensor, sample: Tensor) -> Tensor:
    a, x = concentration.to(float64), sample.to(float64)
    step = a.clamp(min=1.0) * 1e-5
    change = (apply(TABLE["igamma"], (a + step, x)) - apply(TABLE["igamma"], (a - step, x))) / (2.0 * step)
    log_density = (a - 1.0) * x.log() - x - a.lgamma()
    return (-change / log_density.exp()).to(concentration.dtype)


def standard_gamma(concentration: Tensor) -> Tensor:
    """Gamma numbers of rate 1, with gradients by the concentration. Below 1 they are those of one more, scaled down."""
    small = concentration < 1.0
    raised = where(small, concentration + 1.0, concentration)
    scale = uniform(concentration.shape, concentration.dtype).log() / concentration
    found = _StandardGamma.apply(raised) * where(small, scale, full_like(scale, 0.0)).exp()
    return found.clamp(min=2.0**-126)


def poisson(rate: Tensor, generator: Any = None) -> Tensor:
    """Counts of events at a rate: one by one where it is small, by Hormann's transformed rejection where it is not."""
    small = _poisson_small(rate.clamp(max=10.0), generator)
    return where(rate < 10.0, small, _poisson_large(rate.clamp(min=10.0), generator))


SMALL = 48  # counts looked at: at a mean of 10 more come once in 10^16


def _counted(first: Tensor, ratio: Any, generator: Any) -> Tensor:
    """How many of the cumulated chances of 0, 1, 2, ... lie below a uniform number. The chance of 0 is `first`, and that of k
    is `ratio(k)` times the one before."""
    u = uniform(first.shape, float64, generator)
    chance = total = first
    count = full_like(first, 0.0)
    for k in range(1, SMALL):
        count = count + (u > total).to(float64)
        chance = chance * ratio(k)
        total = total + chance
    return count


def _poisson_small(rate: Tensor, generator: Any) -> Tensor:
    wide = rate.to(float64)
    return _counted((-wide).exp(), lambda k: wide / k, generator).to(rate.dtype)


def _proposed(a: Tensor, b: Tensor, middle: Tensor, generator: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Counts proposed by Hormann's transformed rejection, the numbers to accept them by, and their distance from an end."""
    shape = (TRIES * 2, *b.shape)
    u, v = rand(shape, dtype=float64, generator=generator) - 0.5, uniform(shape, float64, generator)
    us = (0.5 - u.abs()).clamp(min=1e-12)
    return ((2.0 * a / us + b) * u + middle).floor(), v, us


def _poisson_large(rate: Tensor, generator: Any) -> Tensor:
    wide = rate.to(float64)
    b = 0.931 + 2.53 * wide.sqrt()
    a = -0.059 + 0.02483 * b
    k, v, us = _proposed(a, b, wide + 0.43, generator)
    bound = (v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b)).log()
    accepted = (k >= 0) & (bound <= k * wide.log() - wide - (k.clamp(min=0.0) + 1.0).lgamma())
    return first_accepted(k.clamp(min=0.0), accepted).to(rate.dtype)


def binomial(count: Tensor, chance: Tensor, generator: Any = None) -> Tensor:
    """How many of `count` trials succeed: by cumulated chances where few do, by transformed rejection where many do."""
    n, p = count.to(float64), chance.to(float64)
    rare = p.minimum(1.0 - p)
    few = n * rare < 10.0
    small = _binomial_small(where(few, n, 1.0), where(few, rare, 0.5), generator)
    found = where(few, small, _binomial_large(where(few, 40.0, n), where(few, 0.5, rare), generator))
    return where(p > 0.5, n - found, found).to(count.dtype)


def _binomial_small(n: Tensor, p: Tensor, generator: Any) -> Tensor:
    odds = p / (1.0 - p)
    found = _counted((1.0 - p) ** n, lambda k: odds * (n - k + 1.0).clamp(min=0.0) / k, generator)
    return found.minimum(n)


def _binomial_large(n: Tensor, p: Tensor, generator: Any) -> Tensor:
    """Hormann's method BTRD without its shortcuts: the chance of a count over that of the likeliest, by lgamma."""
    deviation = (n * p * (1.0 - p)).sqrt()
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    k, v, us = _proposed(a, b, n * p + 0.5, generator)
    likeliest = ((n + 1.0) * p).floor()
    inside = (k >= 0) & (k <= n)
    k = k.maximum(full_like(k, 0.0)).minimum(n)
    height = (likeliest + 1.0).lgamma() + (n - likeliest + 1.0).lgamma() - (k + 1.0).lgamma() - (n - k + 1.0).lgamma()
    height = height + (k - likeliest) * (p / (1.0 - p)).log()
    bound = (v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b)).log()
    return first_accepted(k, inside & (bound <= height))
