"""Constraints of values: the support of a distribution, the domain of a parameter. `check` answers for each event."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.linalg import cholesky_ex


class Constraint:
    """`event_dim` trailing axes make up one value. Scalar constraints check Python numbers too."""

    is_discrete = False
    event_dim = 0
    of_arrays = False  # whether it checks NumPy's arrays, too

    def check(self, value: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return type(self).__name__.lstrip("_").lower()


class _Where(Constraint):
    """A scalar constraint that is one comparison."""

    of_arrays = True

    def __init__(
        self, name: str, holds: Callable[[Any], Any], discrete: bool = False, shown: tuple = (), **bounds: Any
    ) -> None:
        self.name, self.holds, self.is_discrete, self.shown = name, holds, discrete, shown
        self.__dict__.update(bounds)

    def check(self, value: Any) -> Any:
        return self.holds(value)

    def __repr__(self) -> str:
        """The name and the bounds; bounds that are tensors are not read."""
        bounds = [f"a tensor of shape {tuple(b.shape)}" if isinstance(b, Tensor) else str(b) for b in self.shown]
        return f"{self.name}({', '.join(bounds)})" if bounds else self.name


def _whole(value: Any) -> Any:
    return value % 1 == 0


def _both(a: Any, b: Any) -> Any:
    return bool(a) and bool(b) if isinstance(a, bool) and isinstance(b, bool) else a & b


def integer_interval(lower: Any, upper: Any) -> Constraint:
    return _Where("integer_interval", lambda v: _both(_both(v >= lower, v <= upper), _whole(v)), True, (lower, upper),
                  lower_bound=lower, upper_bound=upper)  # fmt: skip


def greater_than(lower: Any) -> Constraint:
    return _Where("greater_than", lambda v: v > lower, shown=(lower,), lower_bound=lower)


def greater_than_eq(lower: Any) -> Constraint:
    return _Where("greater_than_eq", lambda v: v >= lower, shown=(lower,), lower_bound=lower)


def less_than(upper: Any) -> Constraint:
    return _Where("less_than", lambda v: v < upper, shown=(upper,), upper_bound=upper)


def interval(lower: Any, upper: Any) -> Constraint:
    return _Where(
        "interval", lambda v: _both(v >= lower, v <= upper), False, (lower, upper), lower_bound=lower, upper_bound=upper
    )


def half_open_interval(lower: Any, upper: Any) -> Constraint:
    return _Where("half_open_interval", lambda v: _both(v >= lower, v < upper), False, (lower, upper), lower_bound=lower,
                  upper_bound=upper)  # fmt: skip


class _Matrix(Constraint):
    """A constraint on vectors or matrices, by a function of the tensor."""

    def __init__(self, name: str, event_dim: int, holds: Callable[[Tensor], Tensor], discrete: bool = False) -> None:
        self.name, self.event_dim, self.holds, self.is_discrete = name, event_dim, holds, discrete

    def check(self, value: Tensor) -> Tensor:
        return self.holds(value)

    def __repr__(self) -> str:
        return self.name


def _lower(value: Tensor) -> Tensor:
    return (value.tril() == value).all(-1).all(-1)


def _unit_rows(value: Tensor) -> Tensor:
    return (((value * value).sum(-1).sqrt() - 1).abs() < 1e-5 * math.sqrt(value.shape[-1])).all(-1)


def _symmetric(value: Tensor) -> Tensor:
    return value.isclose(value.mT, atol=1e-6).all(-1).all(-1)


def _positive_definite(value: Tensor) -> Tensor:
    return _symmetric(value) & (cholesky_ex(value).info == 0)


def multinomial(total: int) -> Constraint:
    return _Matrix("multinomial", 1, lambda v: (v >= 0).all(-1) & (v.sum(-1) <= total), True)


class _Dependent(Constraint):
    """A support that depends on parameters, asked of a class."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def check(self, value: Any) -> Any:
        raise ValueError(f"{type(self).__name__}: it depends on parameters: ask an instance of the distribution, not its class")


class dependent_property(property):
    """A support that an instance computes."""

    def __init__(self, function: Callable | None = None, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        super().__init__(function)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, function: Callable) -> dependent_property:
        return dependent_property(function, is_discrete=self.is_discrete, event_dim=self.event_dim)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return _Dependent(is_discrete=self.is_discrete, event_dim=self.event_dim)
        return super().__get__(instance, owner)


class independent(Constraint):
    """A constraint whose last batch axes belong to the event."""

    def __init__(self, base_constraint: Constraint, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims
        self.is_discrete, self.of_arrays = base_constraint.is_discrete, base_constraint.of_arrays
        self.event_dim = base_constraint.event_dim + reinterpreted_batch_ndims

    def check(self, value: Tensor) -> Tensor:
        found = self.base_constraint.check(value)
        for _ in range(self.reinterpreted_batch_ndims):
            found = found.all(-1)
        return found

    def __repr__(self) -> str:
        return f"independent({self.base_constraint!r}, {self.reinterpreted_batch_ndims})"


dependent = _Dependent()
boolean = _Where("boolean", lambda v: (v == 0) | (v == 1), True)
nonnegative_integer = _Where("nonnegative_integer", lambda v: _both(v >= 0, _whole(v)), True, lower_bound=0)
positive_integer = _Where("positive_integer", lambda v: _both(v >= 1, _whole(v)), True, lower_bound=1)
real = _Where("real", lambda v: v == v)
positive = _Where("positive", lambda v: v > 0.0, lower_bound=0.0)
nonnegative = _Where("nonnegative", lambda v: v >= 0.0, lower_bound=0.0)
unit_interval = interval(0.0, 1.0)
real_vector = independent(real, 1)
one_hot = _Matrix("one_hot", 1, lambda v: ((v == 0) | (v == 1)).all(-1) & (v.sum(-1) == 1), True)
simplex = _Matrix("simplex", 1, lambda v: (v >= 0).all(-1) & ((v.sum(-1) - 1).abs() < 1e-6))
lower_triangular = _Matrix("lower_triangular", 2, _lower)
lower_cholesky = _Matrix("lower_cholesky", 2, lambda v: _lower(v) & (v.diagonal(0, -2, -1) > 0).all(-1))
corr_cholesky = _Matrix("corr_cholesky", 2, lambda v: lower_cholesky.check(v) & _unit_rows(v))
symmetric = _Matrix("symmetric", 2, _symmetric)
positive_definite = _Matrix("positive_definite", 2, _positive_definite)
