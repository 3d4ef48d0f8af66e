"""Distributions over classes: which one, as a number or a vector, and how often each."""

from __future__ import annotations

import math
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import arange, full_like
from gt.client.functions.elementwise import where
from gt.client.grad_mode import no_grad
from gt.distributions import constraints
from gt.distributions.discrete import Binomial, ByChance
from gt.distributions.distribution import Distribution, Shape, broadcast_all
from gt.distributions.sampling import uniform
from gt.nn.functional import one_hot
from gt.ops.rules import broadcast
from gt.spec import float32


class Categorical(ByChance):
    """Places along the last axis of `probs` or `logits`.

    >>> gt.distributions.Categorical(gt.tensor([0.25, 0.75])).entropy()
    tensor(0.5623)
    """

    binary = False
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._take(probs, logits)
        if self._param.ndim < 1:
            raise ValueError("probs and logits of Categorical have at least one axis, that of the classes")
        if "_probs" in self.__dict__:
            self._probs = self._param = self._probs / self._probs.sum(-1, keepdim=True)
        else:
            self._logits = self._param = self._logits - self._logits.logsumexp(-1, keepdim=True)
        self._num_events = self._param.shape[-1]
        super().__init__(self._param.shape[:-1], validate_args=validate_args)

    @constraints.dependent_property(is_discrete=True)
    def support(self) -> Any:
        return constraints.integer_interval(0, self._num_events - 1)

    mean = property(lambda self: full_like(self._param.sum(-1), math.nan))
    variance = property(lambda self: full_like(self._param.sum(-1), math.nan))
    mode = property(lambda self: self.probs.argmax(-1))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        with no_grad():
            shape = (*sample_shape, *self._batch_shape, self._num_events)
            return (-(-uniform(shape, float32).log()).log() + self.logits.to(float32)).argmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value).long().unsqueeze(-1)
        shape = tuple(broadcast(tuple(value.shape[:-1]), tuple(self._batch_shape)))
        logits = self.logits.expand((*shape, self._num_events))
        return logits.gather(-1, value.expand((*shape, 1))).squeeze(-1)

    def entropy(self) -> Tensor:
        logits = self.logits.clamp(min=-3.0e38)
        return -(logits * self.probs).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events).reshape((-1, *(1 for _ in self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values


class OneHotCategorical(Distribution):
    """A categorical distribution whose values are vectors with one 1."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    support = constraints.one_hot
    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits)
        self._given = self._categorical._given
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    probs = property(lambda self: self._categorical.probs)
    logits = property(lambda self: self._categorical.logits)
    param_shape = property(lambda self: self._categorical.param_shape)
    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    @property
    def mode(self) -> Tensor:
        return one_hot(self.probs.argmax(-1), self._event_shape[0]).to(self.probs.dtype)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        return one_hot(self._categorical.sample(sample_shape), self._event_shape[0]).to(self._categorical._param.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(self._validate_sample(value).argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        n = self._event_shape[0]
        values = one_hot(arange(n), n).to(self._categorical._param.dtype)
        values = values.reshape((n, *(1 for _ in self._batch_shape), n))
        return values.expand((n, *self._batch_shape, n)) if expand else values


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """Gradients go through samples as if they were the chances."""

    has_rsample = True

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())


class Multinomial(Distribution):
    """How often each class came in `total_count` draws."""

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        if not isinstance(total_count, int):
            raise NotImplementedError("Multinomial takes one total_count, an int, for all elements")
        self.total_count, self._categorical = total_count, Categorical(probs, logits)
        self._given = self._categorical._given
        super().__init__(self._categorical.batch_shape, self._categorical.param_shape[-1:], validate_args)

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> Any:
        return constraints.multinomial(self.total_count)

    probs = property(lambda self: self._categorical.probs)
    logits = property(lambda self: self._categorical.logits)
    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        name = (self._given or ("probs",))[0]
        value = getattr(self, name)
        return Multinomial(self.total_count, **{name: value.expand((*batch_shape, value.shape[-1]))}, validate_args=False)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        return one_hot(drawn, self._event_shape[0]).sum(0).to(self._categorical._param.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        value = self._validate_sample(value)
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        logits, value = broadcast_all(self.logits, value)
        return ways + (where((value == 0) & (logits == -math.inf), 0.0, logits) * value).sum(-1)

    def entropy(self) -> Tensor:
        n = float(self.total_count)
        each = Binomial(self.total_count, probs=self.probs)
        support = each.enumerate_support(False)[1:]
        weighted = (each.log_prob(support).exp() * (support + 1).lgamma()).sum(0).sum(-1)
        return n * self._categorical.entropy() - math.lgamma(n + 1) + weighted
