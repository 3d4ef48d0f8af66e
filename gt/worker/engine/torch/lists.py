"""One kernel for the same op on many tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gt.ops import Kind
from gt.spec import Spec

Array = torch.Tensor
FLOATS = ("float32", "float64")


class OfMany(NamedTuple):
    """`run` takes the operands of many instructions and returns the result of each. The results have one dtype, operands after
    the first are the same if they are numbers or 0-d, and `fits(kind)` is true of each."""

    run: Callable[..., list[tuple[Array]]]
    fits: Callable[[Kind], bool]


def norms(calls: list[tuple], *, order: float, **axes: Any) -> list[tuple[Array]]:
    return [(x,) for x in torch._foreach_norm([a for (a,) in calls], order)]


def _is_norm_of_all(kind: Kind) -> bool:
    order, axes, keepdims = (kind.settings[name] for name in ("order", "axis", "keepdims"))
    return kind.ins[0].dtype.name in FLOATS and order in (1.0, 2.0) and len(axes) == kind.ins[0].ndim and not keepdims


def products(calls: list[tuple]) -> list[tuple[Array]]:
    return [(x,) for x in torch._foreach_mul([c[0] for c in calls], calls[0][1])]


def sums(calls: list[tuple]) -> list[tuple[Array]]:
    return [(x,) for x in torch._foreach_add([c[0] for c in calls], calls[0][1])]


def lerps(calls: list[tuple]) -> list[tuple[Array]]:
    return [(x,) for x in torch._foreach_lerp([c[0] for c in calls], [c[1] for c in calls], calls[0][2])]


def _is_scaling(kind: Kind) -> bool:
    a, b = kind.ins
    return _is_alone(kind, a) and (b is float or type(b) is Spec and not b.ndim and b.dtype is a.dtype)


def _is_sum(kind: Kind) -> bool:
    a, b = kind.ins
    return _is_alone(kind, a) and b in (int, float)


def _is_lerp(kind: Kind) -> bool:
    a, b, weight = kind.ins
    return _is_alone(kind, a) and a == b and weight is float and a.dtype.name in FLOATS


def _is_alone(kind: Kind, a: Any) -> bool:
    """Whether the first operand alone gives the result its spec."""
    return type(a) is Spec and kind.outs == (a,)


NORMS, PRODUCTS = OfMany(norms, _is_norm_of_all), OfMany(products, _is_scaling)
SUMS, LERPS = OfMany(sums, _is_sum), OfMany(lerps, _is_lerp)
