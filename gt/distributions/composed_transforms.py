"""Transforms composed of other transforms, and transforms that change a shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.join import cat, stack
from gt.distributions import constraints
from gt.distributions.elementwise_transforms import Transform, sum_rightmost


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
        raise ValueError(f"expected a shape that ends in {tail}, got {shape}")
    return shape[: len(shape) - len(tail)] + other


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
