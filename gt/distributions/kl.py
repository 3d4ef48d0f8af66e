"""Kullback-Leibler divergences in closed form, found by the types of both distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.elementwise import where
from gt.distributions import classes as k
from gt.distributions import composite as c
from gt.distributions import discrete as d
from gt.distributions import multivariate as m
from gt.distributions import positive as p_
from gt.distributions import real_line as r
from gt.distributions.distribution import Distribution
from gt.distributions.elementwise_transforms import sum_rightmost
from gt.linalg import solve_triangular

REGISTRY: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Callable], Callable]:
    """A decorator: this function is the divergence of distributions of these types."""
    if not (issubclass(type_p, Distribution) and issubclass(type_q, Distribution)):
        raise TypeError(f"register_kl takes two distributions, not {type_p} and {type_q}")

    def keep(function: Callable) -> Callable:
        REGISTRY[type_p, type_q] = function
        return function

    return keep


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """The Kullback-Leibler divergence of `q` from `p`.

    >>> n = gt.distributions.Normal
    >>> gt.distributions.kl_divergence(n(0.0, 1.0), n(1.0, 1.0))
    tensor(0.5000)
    """
    found = [
        (type(p).__mro__.index(a) + type(q).__mro__.index(b), f)
        for (a, b), f in REGISTRY.items() if isinstance(p, a) and isinstance(q, b)
    ]  # fmt: skip
    if not found:
        raise NotImplementedError(f"no divergence of {type(p).__name__} and {type(q).__name__} is known: see register_kl")
    return min(found, key=lambda pair: pair[0])[1](p, q)


def _infinite_where(condition: Tensor, value: Tensor) -> Tensor:
    return where(condition, math.inf, value)


@register_kl(r.Normal, r.Normal)
def _(p: Any, q: Any) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(r.Laplace, r.Laplace)
def _(p: Any, q: Any) -> Tensor:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + apart / q.scale + ratio * (-apart / p.scale).exp() - 1


@register_kl(r.Cauchy, r.Cauchy)
def _(p: Any, q: Any) -> Tensor:
    return ((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2).log() - (4 * p.scale * q.scale).log()


@register_kl(r.Gumbel, r.Gumbel)
def _(p: Any, q: Any) -> Tensor:
    ratio, shift = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return -ratio.log() + shift + ratio * r.EULER + ((q.loc - p.loc) / q.scale + (1 + ratio).lgamma()).exp() - (1 + r.EULER)


@register_kl(r.Uniform, r.Uniform)
def _(p: Any, q: Any) -> Tensor:
    return _infinite_where((q.low > p.low) | (q.high < p.high), ((q.high - q.low) / (p.high - p.low)).log())


@register_kl(p_.Exponential, p_.Exponential)
def _(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


@register_kl(p_.Gamma, p_.Gamma)
def _(p: Any, q: Any) -> Tensor:
    return (q.concentration * (p.rate / q.rate).log() + q.concentration.lgamma() - p.concentration.lgamma()
            + (p.concentration - q.concentration) * p.concentration.digamma()
            + (q.rate - p.rate) * (p.concentration / p.rate))  # fmt: skip


@register_kl(p_.InverseGamma, p_.InverseGamma)
def _(p: Any, q: Any) -> Tensor:
    return kl_divergence(p_.Gamma(p.concentration, p.rate), p_.Gamma(q.concentration, q.rate))


@register_kl(p_.Pareto, p_.Pareto)
def _(p: Any, q: Any) -> Tensor:
    scale, alpha = p.scale / q.scale, q.alpha / p.alpha
    return _infinite_where(p.scale < q.scale, q.alpha * scale.log() - alpha.log() + alpha - 1)


@register_kl(p_.Beta, p_.Beta)
def _(p: Any, q: Any) -> Tensor:
    a, b = ((x.concentration1, x.concentration0) for x in (p, q))
    total, other = a[0] + a[1], b[0] + b[1]
    norm = b[0].lgamma() + b[1].lgamma() + total.lgamma() - a[0].lgamma() - a[1].lgamma() - other.lgamma()
    return norm + (a[0] - b[0]) * a[0].digamma() + (a[1] - b[1]) * a[1].digamma() + (other - total) * total.digamma()


@register_kl(p_.Weibull, p_.Weibull)
def _(p: Any, q: Any) -> Tensor:
    """From moments of powers and of the logarithm."""
    a, b = p.concentration, q.concentration
    moment = ((p.scale / q.scale).log() * b + (b / a + 1).lgamma()).exp()
    return (a / p.scale**a).log() - (b / q.scale**b).log() + (a - b) * (p.scale.log() - r.EULER / a) + moment - 1


@register_kl(d.Bernoulli, d.Bernoulli)
def _(p: Any, q: Any) -> Tensor:
    yes = p.probs * (d.softplus(-q.logits) - d.softplus(-p.logits))
    no = (1 - p.probs) * (d.softplus(q.logits) - d.softplus(p.logits))
    yes = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, yes))
    no = where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, no))
    return yes + no


@register_kl(d.Binomial, d.Binomial)
def _(p: Any, q: Any) -> Tensor:
    value = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return _infinite_where(p.total_count > q.total_count, value)


@register_kl(k.Categorical, k.Categorical)
def _(p: Any, q: Any) -> Tensor:
    each = p.probs * (p.logits - q.logits)
    each = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, each))
    return each.sum(-1)


@register_kl(k.OneHotCategorical, k.OneHotCategorical)
def _(p: Any, q: Any) -> Tensor:
    return kl_divergence(p._categorical, q._categorical)


@register_kl(d.Geometric, d.Geometric)
def _(p: Any, q: Any) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(d.Poisson, d.Poisson)
def _(p: Any, q: Any) -> Tensor:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(d.ContinuousBernoulli, d.ContinuousBernoulli)
def _(p: Any, q: Any) -> Tensor:
    mean = p.mean * (p.logits - q.logits)
    return mean + p._log_norm() + (-p.probs).log1p() - q._log_norm() - (-q.probs).log1p()


@register_kl(m.Dirichlet, m.Dirichlet)
def _(p: Any, q: Any) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    norm = total.lgamma() - b.sum(-1).lgamma() + (b.lgamma() - a.lgamma()).sum(-1)
    return norm + ((a - b) * (a.digamma() - total.digamma().unsqueeze(-1))).sum(-1)


@register_kl(m.MultivariateNormal, m.MultivariateNormal)
def _(p: Any, q: Any) -> Tensor:
    half = m._half_log_det(q.scale_tril) - m._half_log_det(p.scale_tril)
    n = p.event_shape[0]
    batch = tuple(m.broadcast(tuple(p.batch_shape), tuple(q.batch_shape)))
    lower = q.scale_tril.expand((*batch, n, n))
    trace = (solve_triangular(lower, p.scale_tril.expand((*batch, n, n)), upper=False) ** 2).sum(-1).sum(-1)
    shift = (m._solve(q.scale_tril, q.loc - p.loc) ** 2).sum(-1)
    return half + 0.5 * (trace + shift - n)


@register_kl(m.LowRankMultivariateNormal, m.LowRankMultivariateNormal)
@register_kl(m.LowRankMultivariateNormal, m.MultivariateNormal)
@register_kl(m.MultivariateNormal, m.LowRankMultivariateNormal)
def _(p: Any, q: Any) -> Tensor:
    full = [m.MultivariateNormal(x.loc, scale_tril=x.scale_tril) for x in (p, q)]
    return kl_divergence(*full)


@register_kl(m.Wishart, m.Wishart)
def _(p: Any, q: Any) -> Tensor:
    n, nu = p.event_shape[0], p.df
    log_ratio = 2 * (m._half_log_det(p.scale_tril) - m._half_log_det(q.scale_tril))
    trace = (q.precision_matrix * p.covariance_matrix).sum(-1).sum(-1)
    norms = (q.df / 2).mvlgamma(n) - (nu / 2).mvlgamma(n)
    return -q.df / 2 * log_ratio + nu / 2 * (trace - n) + norms + (nu - q.df) / 2 * m._mvdigamma(nu / 2, n)


@register_kl(c.HalfNormal, c.HalfNormal)
@register_kl(c.LogNormal, c.LogNormal)
def _(p: Any, q: Any) -> Tensor:
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(c.Independent, c.Independent)
def _(p: Any, q: Any) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("divergences of Independent distributions are known for as many axes on both sides")
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(c.TransformedDistribution, c.TransformedDistribution)
def _(p: Any, q: Any) -> Tensor:
    if p.transforms != q.transforms or tuple(p.event_shape) != tuple(q.event_shape):
        raise NotImplementedError("divergences of transformed distributions are known for equal transforms")
    extra = len(p.event_shape) - len(p.base_dist.event_shape)
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), extra)


@register_kl(r.Uniform, r.Normal)
def _(p: Any, q: Any) -> Tensor:
    width = p.high - p.low
    shift = ((p.high + p.low - 2 * q.loc) / 2) ** 2
    return (math.sqrt(2 * math.pi) * q.scale / width).log() + (width**2 / 12 + shift) / (2 * q.scale**2)


@register_kl(r.Normal, r.Laplace)
def _(p: Any, q: Any) -> Tensor:
    z = (p.loc - q.loc) / p.scale
    folded = math.sqrt(2 / math.pi) * p.scale * (-0.5 * z**2).exp() + (p.loc - q.loc) * (math.sqrt(0.5) * z).erf()
    return -(p.scale / q.scale).log() + folded / q.scale - 0.5 * (1 + math.log(0.5 * math.pi))


@register_kl(r.Laplace, r.Normal)
def _(p: Any, q: Any) -> Tensor:
    var = q.scale**2
    return 0.5 * (0.5 * math.pi * var).log() + p.scale**2 / var + 0.5 * (p.loc - q.loc) ** 2 / var - p.scale.log() - 1


@register_kl(r.Gumbel, r.Normal)
def _(p: Any, q: Any) -> Tensor:
    ratio = p.scale / q.scale
    shift = ((p.loc + p.scale * r.EULER - q.loc) / q.scale) ** 2
    return -(ratio).log() + 0.5 * (ratio * math.pi) ** 2 / 6 + 0.5 * shift + 0.5 * math.log(2 * math.pi) - (1 + r.EULER)


@register_kl(p_.Exponential, p_.Gamma)
def _(p: Any, q: Any) -> Tensor:
    ratio = q.rate / p.rate
    return -q.concentration * ratio.log() + ratio + q.concentration.lgamma() + q.concentration * r.EULER - (1 + r.EULER)


@register_kl(p_.Gamma, p_.Exponential)
def _(p: Any, q: Any) -> Tensor:
    return -p.entropy() - q.rate.log() + q.rate * p.concentration / p.rate


@register_kl(p_.Exponential, r.Normal)
def _(p: Any, q: Any) -> Tensor:
    var, mean = q.scale**2, 1 / p.rate
    return 0.5 * (p.rate**2 * var * 2 * math.pi).log() - 1 + mean**2 / var - q.loc * mean / var + 0.5 * q.loc**2 / var


@register_kl(p_.Gamma, r.Normal)
def _(p: Any, q: Any) -> Tensor:
    mean, var = p.concentration / p.rate, q.scale**2
    second = (p.concentration + p.concentration**2) / p.rate**2
    return 0.5 * (2 * math.pi * var).log() - p.entropy() + 0.5 * (second - 2 * q.loc * mean + q.loc**2) / var


@register_kl(r.Uniform, r.Gumbel)
def _(p: Any, q: Any) -> Tensor:
    width = q.scale / (p.high - p.low)
    low, high = (p.low - q.loc) / q.scale, (p.high - q.loc) / q.scale
    return width.log() + 0.5 * (high + low) - width * ((-high).exp() - (-low).exp())


@register_kl(r.Normal, r.Gumbel)
def _(p: Any, q: Any) -> Tensor:
    mean, ratio = (p.loc - q.loc) / q.scale, (p.scale / q.scale) ** 2
    return mean + (-mean + 0.5 * ratio).exp() - 0.5 * ratio.log() - 0.5 * (1 + math.log(2 * math.pi))
