"""From a constraint to a transform of all real numbers onto it: `biject_to` one to one, `transform_to` perhaps not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.distributions import constraints as c
from gt.distributions import transforms as t
from gt.distributions import vector_transforms as v


class ConstraintRegistry:
    """Functions that make a transform for a constraint, by the name of the constraint."""

    def __init__(self, **made: Callable[[Any], t.Transform]) -> None:
        self.made = made

    def register(self, constraint: Any, factory: Callable | None = None) -> Callable:
        """A decorator, or a call with the factory: use it for constraints of this name."""
        if factory is None:
            return lambda f: self.register(constraint, f)
        self.made[_name(constraint)] = factory
        return factory

    def __call__(self, constraint: c.Constraint) -> t.Transform:
        if isinstance(constraint, c.independent):
            return t.IndependentTransform(self(constraint.base_constraint), constraint.reinterpreted_batch_ndims)
        name = _name(constraint)
        if name not in self.made:
            raise NotImplementedError(f"no transform onto {constraint!r} is known: there are ones onto {', '.join(self.made)}")
        return self.made[name](constraint)


def _name(constraint: Any) -> str:
    return repr(constraint).partition("(")[0]


def _to_interval(constraint: Any) -> t.Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if not hasattr(low, "handle") and not hasattr(high, "handle") and (low, high) == (0.0, 1.0):
        return t.SigmoidTransform()
    return t.ComposeTransform([t.SigmoidTransform(), t.AffineTransform(low, high - low)])


def _above(constraint: Any) -> t.Transform:
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(constraint.lower_bound, 1)])


def _below(constraint: Any) -> t.Transform:
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(constraint.upper_bound, -1)])


_SHARED: dict[str, Callable[[Any], t.Transform]] = {
    "real": lambda _: t.identity_transform,
    "positive": lambda _: t.ExpTransform(),
    "nonnegative": lambda _: t.ExpTransform(),
    "greater_than": _above,
    "greater_than_eq": _above,
    "less_than": _below,
    "interval": _to_interval,
    "half_open_interval": _to_interval,
    "lower_cholesky": lambda _: v.LowerCholeskyTransform(),
    "positive_definite": lambda _: v.PositiveDefiniteTransform(),
    "corr_cholesky": lambda _: v.CorrCholeskyTransform(),
}
biject_to = ConstraintRegistry(**_SHARED, simplex=lambda _: v.StickBreakingTransform())
transform_to = ConstraintRegistry(**_SHARED, simplex=lambda _: v.SoftmaxTransform())
