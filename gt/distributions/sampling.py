"""Random numbers of distributions that have no inverse in closed form, made of uniform and normal ones, so that they are the
same on every engine and any number of workers. Proposals are drawn a fixed number of times at once and the first that is
accepted is taken: that all are refused happens once in 10^10 values, which then take the first proposal."""

from __future__ import annotations

from typing import Any

from gt.autograd.function import Function
from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import arange, full_like
from gt.client.functions.elementwise import where
from gt.client.functions.random import rand, randn
from gt.ops.table import TABLE
from gt.spec import float32, float64

TRIES = 8


def uniform(shape: Any, dtype: Any) -> Tensor:
    """Numbers in (0, 1): neither end, so that logarithms are finite."""
    wide = dtype if dtype in (float32, float64) else float32
    return (rand(shape, dtype=wide) + 2.0**-25).to(dtype)


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


def poisson(rate: Tensor) -> Tensor:
    """Counts of events at a rate: one by one where it is small, by Hormann's transformed rejection where it is not."""
    return where(rate < 10.0, _poisson_small(rate.clamp(max=10.0)), _poisson_large(rate.clamp(min=10.0)))


SMALL = 48  # counts looked at: at a rate of 10 more come once in 10^16


def _poisson_small(rate: Tensor) -> Tensor:
    """How many of the cumulated chances of 0, 1, 2, ... lie below a uniform number."""
    u = uniform(rate.shape, float64)
    wide = rate.to(float64)
    chance = (-wide).exp()
    total, count = chance, full_like(wide, 0.0)
    for k in range(1, SMALL):
        count = count + (u > total).to(float64)
        chance = chance * wide / k
        total = total + chance
    return count.to(rate.dtype)


def _poisson_large(rate: Tensor) -> Tensor:
    wide = rate.to(float64)
    b = 0.931 + 2.53 * wide.sqrt()
    a = -0.059 + 0.02483 * b
    shape = (TRIES * 2, *rate.shape)
    u, v = rand(shape, dtype=float64) - 0.5, uniform(shape, float64)
    us = (0.5 - u.abs()).clamp(min=1e-12)
    k = ((2.0 * a / us + b) * u + wide + 0.43).floor()
    bound = (v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b)).log()
    accepted = (k >= 0) & (bound <= k * wide.log() - wide - (k.clamp(min=0.0) + 1.0).lgamma())
    return first_accepted(k.clamp(min=0.0), accepted).to(rate.dtype)


def binomial(count: Tensor, chance: Tensor, most: int) -> Tensor:
    """How many of `count` trials, at most `most`, succeed: trial by trial, so memory grows with their number."""
    trials = rand((most, *count.shape), dtype=float32)
    number = _numbers(most, count)
    return ((trials < chance) & (number < count)).to(count.dtype).sum(0)


def _numbers(most: int, like: Tensor) -> Tensor:
    return arange(most).reshape((most, *(1 for _ in like.shape)))
