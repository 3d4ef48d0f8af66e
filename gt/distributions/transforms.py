"""Invertible functions with the logarithm of their derivative, of which distributions are made from others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.reshape import cat, stack
from gt.distributions import constraints
from gt.nn.functional import softplus


class Transform:
    """Subclass with `_call`, `_inverse`, `log_abs_det_jacobian`, `domain` and `codomain`."""

    bijective = False
    domain: Any = constraints.real
    codomain: Any = constraints.real
    sign = 1

    def __init__(self, cache_size: int = 0) -> None:
        if cache_size not in (0, 1):
            raise ValueError(f"cache_size is 0 or 1, not {cache_size}")
        self._inv: Any = None

    @property
    def event_dim(self) -> int:
        if self.domain.event_dim != self.codomain.event_dim:
            raise ValueError("this transform has other events at its input than at its output: ask domain and codomain")
        return self.domain.event_dim

    @property
    def inv(self) -> Transform:
        if self._inv is None:
            self._inv = _Inverse(self)
        return self._inv

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._inverse(y)

    def _call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _inverse(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self._inv, self.bijective, self.sign = transform, transform.bijective, transform.sign
        self.domain, self.codomain = transform.codomain, transform.domain

    def _call(self, x: Tensor) -> Tensor:
        return self._inv._inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._inv._call(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self._inv.log_abs_det_jacobian(y, x)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self._inv.inverse_shape(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return self._inv.forward_shape(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inverse) and self._inv == other._inv

    __hash__ = Transform.__hash__


def sum_rightmost(value: Tensor, dim: int) -> Tensor:
    """The sum over so many last axes."""
    return value.reshape((*value.shape[: value.ndim - dim], -1)).sum(-1) if dim else value


class ComposeTransform(Transform):
    """One after another."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)

    def _events(self) -> tuple[int, int]:
        """Axes of an event at the input and at the output: as many as any part needs there."""
        first = self.parts[0].domain.event_dim
        at = first
        for part in self.parts:
            need = part.domain.event_dim
            first, at = first + max(need - at, 0), max(at, need)
            at += part.codomain.event_dim - need
        return first, at

    @property
    def domain(self) -> Any:
        if not self.parts:
            return constraints.real
        own, want = self.parts[0].domain, self._events()[0]
        return own if own.event_dim == want else constraints.independent(own, want - own.event_dim)

    @property
    def codomain(self) -> Any:
        if not self.parts:
            return constraints.real
        own, want = self.parts[-1].codomain, self._events()[1]
        return own if own.event_dim == want else constraints.independent(own, want - own.event_dim)

    @property
    def bijective(self) -> bool:  # type: ignore[override]
        return all(p.bijective for p in self.parts)

    @property
    def sign(self) -> Any:  # type: ignore[override]
        return math.prod((p.sign for p in self.parts), start=1)

    def _call(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        if not self.parts:
            return full_like(x, 0.0)
        total: Any = 0.0
        at = self.domain.event_dim
        for part in self.parts:
            after = part(x)
            total = total + sum_rightmost(part.log_abs_det_jacobian(x, after), at - part.domain.event_dim)
            at += part.codomain.event_dim - part.domain.event_dim
            x = after
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return tuple(shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return tuple(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComposeTransform) and self.parts == other.parts

    __hash__ = Transform.__hash__


identity_transform = ComposeTransform([])


class IndependentTransform(Transform):
    """The same transform, with so many more axes belonging to an event."""

    def __init__(self, base_transform: Transform, reinterpreted_batch_ndims: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.base_transform, self.reinterpreted_batch_ndims = base_transform, reinterpreted_batch_ndims
        self.bijective, self.sign = base_transform.bijective, base_transform.sign
        self.domain = constraints.independent(base_transform.domain, reinterpreted_batch_ndims)
        self.codomain = constraints.independent(base_transform.codomain, reinterpreted_batch_ndims)

    def _call(self, x: Tensor) -> Tensor:
        return self.base_transform(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.base_transform.inv(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return sum_rightmost(self.base_transform.log_abs_det_jacobian(x, y), self.reinterpreted_batch_ndims)


class ReshapeTransform(Transform):
    bijective = True

    def __init__(self, in_shape: Sequence[int], out_shape: Sequence[int], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.in_shape, self.out_shape = tuple(in_shape), tuple(out_shape)
        if math.prod(self.in_shape) != math.prod(self.out_shape):
            raise ValueError(f"shapes {self.in_shape} and {self.out_shape} have different numbers of elements")
        self.domain = constraints.independent(constraints.real, len(self.in_shape))
        self.codomain = constraints.independent(constraints.real, len(self.out_shape))

    def _call(self, x: Tensor) -> Tensor:
        return x.reshape(self.forward_shape(x.shape))

    def _inverse(self, y: Tensor) -> Tensor:
        return y.reshape(self.inverse_shape(y.shape))

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x.new_zeros(tuple(x.shape[: x.ndim - len(self.in_shape)]))

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _retailed(tuple(shape), self.in_shape, self.out_shape)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return _retailed(tuple(shape), self.out_shape, self.in_shape)


def _retailed(shape: tuple, tail: tuple, other: tuple) -> tuple:
    if shape[len(shape) - len(tail) :] != tail:
        raise ValueError(f"a shape that ends in {tail} was expected, not {shape}")
    return shape[: len(shape) - len(tail)] + other


class ExpTransform(Transform):
    bijective, codomain = True, constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class PowerTransform(Transform):
    bijective, domain, codomain = True, constraints.positive, constraints.positive

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    @property
    def sign(self) -> Any:  # type: ignore[override]
        return self.exponent.sign() if isinstance(self.exponent, Tensor) else math.copysign(1, self.exponent)

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and not isinstance(self.exponent, Tensor) and self.exponent == other.exponent

    __hash__ = Transform.__hash__


class SigmoidTransform(Transform):
    bijective, codomain = True, constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return x.sigmoid().clamp(2.0**-126, 1 - 2.0**-24)

    def _inverse(self, y: Tensor) -> Tensor:
        y = y.clamp(2.0**-126, 1 - 2.0**-24)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)


class SoftplusTransform(Transform):
    bijective, codomain = True, constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -softplus(-x)


class TanhTransform(Transform):
    bijective, codomain = True, constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


class AbsTransform(Transform):
    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._dim = loc, scale, event_dim
        self.domain = self.codomain = constraints.independent(constraints.real, event_dim) if event_dim else constraints.real

    @property
    def sign(self) -> Any:  # type: ignore[override]
        return self.scale.sign() if isinstance(self.scale, Tensor) else (self.scale > 0) - (self.scale < 0)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        found = (
            self.scale.abs().log() + full_like(x, 0.0)
            if isinstance(self.scale, Tensor)
            else (full_like(x, math.log(abs(self.scale))))
        )
        return sum_rightmost(found, self._dim)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AffineTransform):
            return False
        numbers = [v for v in (self.loc, self.scale, other.loc, other.scale) if not isinstance(v, Tensor)]
        same = self.loc is other.loc and self.scale is other.scale
        return same or (len(numbers) == 4 and numbers[:2] == numbers[2:])

    __hash__ = Transform.__hash__


class _Several(Transform):
    """Transforms of the parts of an axis."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.transforms, self.dim = list(tseq), dim
        self.bijective = all(t.bijective for t in self.transforms)
        self.domain = self.transforms[0].domain
        self.codomain = self.transforms[0].codomain

    def _parts(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def _whole(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _map(self, function: Callable[..., Tensor], *values: Tensor) -> Tensor:
        return self._whole([function(t, *parts) for t, *parts in zip(self.transforms, *map(self._parts, values))])

    def _call(self, x: Tensor) -> Tensor:
        return self._map(lambda t, x: t(x), x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._map(lambda t, y: t.inv(y), y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._map(lambda t, x, y: t.log_abs_det_jacobian(x, y), x, y)


class CatTransform(_Several):
    """Parts of these lengths of one axis, each by its own transform."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = list(lengths) if lengths is not None else [1] * len(self.transforms)

    def _parts(self, x: Tensor) -> list[Tensor]:
        ends = [sum(self.lengths[: i + 1]) for i in range(len(self.lengths))]
        return [x.narrow(self.dim, end - n, n) for end, n in zip(ends, self.lengths)]

    def _whole(self, parts: list[Tensor]) -> Tensor:
        return cat(parts, self.dim)


class StackTransform(_Several):
    """Each slice of an axis by its own transform."""

    def _parts(self, x: Tensor) -> list[Tensor]:
        return [x.select(self.dim, i) for i in range(x.shape[self.dim])]

    def _whole(self, parts: list[Tensor]) -> Tensor:
        return stack(parts, self.dim)


class CumulativeDistributionTransform(Transform):
    """To the unit interval, by a distribution's cumulative function."""

    bijective, codomain = True, constraints.unit_interval

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Any:
        return self.distribution.support

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)
