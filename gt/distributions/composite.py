"""Distributions made of distributions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.elementwise import where
from gt.client.grad_mode import no_grad
from gt.distributions import constraints
from gt.distributions.classes import Categorical
from gt.distributions.composed_transforms import ComposeTransform
from gt.distributions.discrete import clamped
from gt.distributions.distribution import Distribution, Shape, broadcast_all
from gt.distributions.elementwise_transforms import (
    AbsTransform,
    ExpTransform,
    SigmoidTransform,
    Transform,
    sum_rightmost,
)
from gt.distributions.real_line import Cauchy, Normal
from gt.distributions.sampling import uniform
from gt.distributions.vector_transforms import StickBreakingTransform


class Independent(Distribution):
    """A distribution whose last batch axes belong to the event."""

    arg_constraints = {}

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        shape = tuple(base_distribution.batch_shape)
        if reinterpreted_batch_ndims > len(shape):
            raise ValueError(f"{reinterpreted_batch_ndims} axes cannot be taken of a batch of shape {shape}")
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        cut = len(shape) - reinterpreted_batch_ndims
        super().__init__(shape[:cut], shape[cut:] + tuple(base_distribution.event_shape), validate_args)

    has_rsample = property(lambda self: self.base_dist.has_rsample)
    has_enumerate_support = property(lambda self: self.base_dist.has_enumerate_support)
    mean = property(lambda self: self.base_dist.mean)
    mode = property(lambda self: self.base_dist.mode)
    variance = property(lambda self: self.base_dist.variance)

    @constraints.dependent_property
    def support(self) -> Any:
        base, n = self.base_dist.support, self.reinterpreted_batch_ndims
        return constraints.independent(base, n) if n else base

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        inner = tuple(self._event_shape)[: self.reinterpreted_batch_ndims]
        return Independent(self.base_dist.expand((*batch_shape, *inner)), self.reinterpreted_batch_ndims, False)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_rightmost(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_rightmost(self.base_dist.entropy(), self.reinterpreted_batch_ndims)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        if self.reinterpreted_batch_ndims > 0:
            raise NotImplementedError("Independent has no list of its values: they multiply over the axes")
        return self.base_dist.enumerate_support(expand)

    def __repr__(self) -> str:
        return f"Independent({self.base_dist!r}, {self.reinterpreted_batch_ndims})"


class TransformedDistribution(Distribution):
    """Samples of a base distribution, transformed."""

    arg_constraints: dict[str, constraints.Constraint] = {}

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform], validate_args: bool | None = None
    ) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        if not all(isinstance(t, Transform) for t in self.transforms):
            raise ValueError("transforms are a Transform or a list of them")
        whole = ComposeTransform(self.transforms)
        shape = tuple(base_distribution.batch_shape) + tuple(base_distribution.event_shape)
        grown = whole.domain.event_dim - len(base_distribution.event_shape)
        if grown > 0:
            base_distribution = Independent(base_distribution, grown)
        self.base_dist = base_distribution
        out = whole.forward_shape(shape)
        event = max(
            whole.codomain.event_dim, len(base_distribution.event_shape) + whole.codomain.event_dim - whole.domain.event_dim
        )
        super().__init__(out[: len(out) - event], out[len(out) - event :], validate_args)

    has_rsample = property(lambda self: self.base_dist.has_rsample)

    @constraints.dependent_property
    def support(self) -> Any:
        if not self.transforms:
            return self.base_dist.support
        own, event = self.transforms[-1].codomain, len(self.event_shape)
        return constraints.independent(own, event - own.event_dim) if event > own.event_dim else own

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        whole = ComposeTransform(self.transforms)
        shape = whole.inverse_shape(tuple(batch_shape) + tuple(self.event_shape))
        base = self.base_dist.expand(shape[: len(shape) - len(self.base_dist.event_shape)])
        return TransformedDistribution(base, self.transforms, validate_args=False)

    def _through(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            return self._through(self.base_dist.sample(sample_shape))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self._through(self.base_dist.rsample(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        event = len(self.event_shape)
        total: Any = 0.0
        y = value
        for transform in reversed(self.transforms):
            x = transform.inv(y)
            event += transform.domain.event_dim - transform.codomain.event_dim
            slope = transform.log_abs_det_jacobian(x, y)
            total = total - sum_rightmost(slope, event - transform.domain.event_dim)
            y = x
        return total + sum_rightmost(self.base_dist.log_prob(y), event - len(self.base_dist.event_shape))

    def _falls(self, value: Tensor) -> Tensor:
        """A probability below a value as one above it, if the transforms reverse the order."""
        sign: Any = 1
        for transform in self.transforms:
            sign = sign * transform.sign
        return value if isinstance(sign, (int, float)) and sign == 1 else sign * (value - 0.5) + 0.5

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._falls(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._through(self.base_dist.icdf(self._falls(value)))


class MixtureSameFamily(Distribution):
    """One of several distributions of a family, chosen by a categorical one."""

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = False

    def __init__(
        self, mixture_distribution: Any, component_distribution: Distribution, validate_args: bool | None = None
    ) -> None:
        if not isinstance(mixture_distribution, Categorical):
            raise ValueError(f"a mixture is chosen by a Categorical, not a {type(mixture_distribution).__name__}")
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        shape = tuple(component_distribution.batch_shape)
        n = mixture_distribution.param_shape[-1]
        if not shape or shape[-1] != n:
            raise ValueError(f"{n} weights for components of batch shape {shape}: expected the last axis to be of that size")
        self._event_dims = len(component_distribution.event_shape)
        super().__init__(shape[:-1], component_distribution.event_shape, validate_args)

    @constraints.dependent_property
    def support(self) -> Any:
        return self.component_distribution.support

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        n = self.mixture_distribution.param_shape[-1]
        return MixtureSameFamily(self.mixture_distribution.expand(batch_shape),
                                 self.component_distribution.expand((*batch_shape, n)), validate_args=False)  # fmt: skip

    def _weights(self) -> Tensor:
        probs = self.mixture_distribution.probs
        return probs.reshape((*probs.shape, *(1 for _ in range(self._event_dims))))

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self.component_distribution.mean).sum(-1 - self._event_dims)

    @property
    def variance(self) -> Tensor:
        axis, weights = -1 - self._event_dims, self._weights()
        inner = (weights * self.component_distribution.variance).sum(axis)
        centered = self.component_distribution.mean - self.mean.unsqueeze(axis)
        return inner + (weights * centered**2).sum(axis)

    def cdf(self, value: Tensor) -> Tensor:
        shares = self.component_distribution.cdf(value.unsqueeze(-1 - self._event_dims))
        return (shares * self.mixture_distribution.probs).sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value).unsqueeze(-1 - self._event_dims)
        each = self.component_distribution.log_prob(value)
        return (each + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            axis = len(sample_shape) + len(self._batch_shape)
            chosen = self.mixture_distribution.sample(sample_shape)
            values = self.component_distribution.sample(sample_shape)
            at = chosen.reshape((*chosen.shape, *(1 for _ in range(self._event_dims + 1))))
            at = at.expand((*chosen.shape, 1, *self._event_shape))
            return values.gather(axis, at).squeeze(axis)


class LogNormal(TransformedDistribution):
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(loc, scale, validate_args), ExpTransform(), validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        return LogNormal(self.loc.expand(tuple(batch_shape)), self.scale.expand(tuple(batch_shape)), validate_args=False)

    loc = property(lambda self: self.base_dist.loc)
    scale = property(lambda self: self.base_dist.scale)
    mean = property(lambda self: (self.loc + self.scale**2 / 2).exp())
    mode = property(lambda self: (self.loc - self.scale**2).exp())
    variance = property(lambda self: (self.scale**2).expm1() * (2 * self.loc + self.scale**2).exp())

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() + self.loc


class _Half(TransformedDistribution):
    """The size of a symmetric number."""

    arg_constraints = {"scale": constraints.positive}
    support = constraints.nonnegative
    base: Any

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (scale,) = broadcast_all(scale)
        super().__init__(self.base(full_like(scale, 0.0), scale, validate_args=False), AbsTransform(), validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        return type(self)(self.scale.expand(tuple(batch_shape)), validate_args=False)

    scale = property(lambda self: self.base_dist.scale)
    mode = property(lambda self: full_like(self.scale, 0.0))

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        return where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self.base_dist.cdf(self._validate_sample(value)) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    base = Normal
    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    variance = property(lambda self: self.scale**2 * (1 - 2 / math.pi))


class HalfCauchy(_Half):
    base = Cauchy
    mean = property(lambda self: full_like(self.scale, math.inf))
    variance = property(lambda self: full_like(self.scale, math.inf))


class LogisticNormal(TransformedDistribution):
    """Shares made of normal numbers."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.simplex

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale, validate_args)
        super().__init__(base if base.batch_shape else base.expand((1,)), StickBreakingTransform(), validate_args)

    loc = property(lambda self: self.base_dist.base_dist.loc)
    scale = property(lambda self: self.base_dist.base_dist.scale)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        shape = (*batch_shape, self.loc.shape[-1])
        return LogisticNormal(self.loc.expand(shape), self.scale.expand(shape), validate_args=False)


class LogitRelaxedBernoulli(Distribution):
    """The logit of a relaxed Bernoulli number."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.real
    has_rsample = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if (probs is None) == (logits is None):
            raise ValueError("RelaxedBernoulli takes either probs or logits")
        self.temperature = temperature
        if logits is None:
            (self.probs,) = broadcast_all(probs)
            safe = clamped(self.probs)
            self.logits = safe.log() - (-safe).log1p()
        else:
            (self.logits,) = broadcast_all(logits)
            self.probs = self.logits.sigmoid()
        super().__init__(self.logits.shape, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        return LogitRelaxedBernoulli(self.temperature, logits=self.logits.expand(tuple(batch_shape)), validate_args=False)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = clamped(uniform(self._extended_shape(sample_shape), self.logits.dtype))
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = broadcast_all(self.logits, self._validate_sample(value))
        diff = logits - value * self.temperature
        log_temperature = self.temperature.log() if isinstance(self.temperature, Tensor) else math.log(self.temperature)
        return log_temperature + diff - 2 * diff.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """Between 0 and 1, the nearer to one of them the lower the temperature."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}
    support = constraints.unit_interval

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(LogitRelaxedBernoulli(temperature, probs, logits), SigmoidTransform(), validate_args)

    temperature = property(lambda self: self.base_dist.temperature)
    logits = property(lambda self: self.base_dist.logits)
    probs = property(lambda self: self.base_dist.probs)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        return RelaxedBernoulli(self.temperature, logits=self.logits.expand(tuple(batch_shape)), validate_args=False)


class ExpRelaxedCategorical(Distribution):
    """The logarithm of relaxed one-hot vectors."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical, self.temperature = Categorical(probs, logits), temperature
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    probs = property(lambda self: self._categorical.probs)
    logits = property(lambda self: self._categorical.logits)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        shape = (*batch_shape, *self.event_shape)
        return ExpRelaxedCategorical(self.temperature, logits=self.logits.expand(shape), validate_args=False)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        u = clamped(uniform(self._extended_shape(sample_shape), self.logits.dtype))
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        n = self.event_shape[0]
        logits, value = broadcast_all(self.logits, self._validate_sample(value))
        temperature = self.temperature if isinstance(self.temperature, Tensor) else full_like(logits[..., 0], self.temperature)
        scores = logits - value * self.temperature
        return (scores - scores.logsumexp(-1, keepdim=True)).sum(-1) + math.lgamma(n) + (n - 1) * temperature.log()


class RelaxedOneHotCategorical(TransformedDistribution):
    """Shares, the nearer to one-hot the lower the temperature."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.simplex

    def __init__(self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        super().__init__(ExpRelaxedCategorical(temperature, probs, logits), ExpTransform(), validate_args)

    temperature = property(lambda self: self.base_dist.temperature)
    logits = property(lambda self: self.base_dist.logits)
    probs = property(lambda self: self.base_dist.probs)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        shape = (*batch_shape, *self.event_shape)
        return RelaxedOneHotCategorical(self.temperature, logits=self.logits.expand(shape), validate_args=False)
