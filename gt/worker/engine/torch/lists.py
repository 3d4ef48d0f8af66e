"""One kernel for the same op on many tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

import torch

from gt.ops import Kind
from gt.program import Instruction
from gt.program.code import bits
from gt.spec import Spec

Array = torch.Tensor
FLOATS = ("float32", "float64")
TINY = 1 << 12  # elements


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


def scaled_sums(calls: list[tuple]) -> list[tuple[Array]]:
    return [(x,) for x in torch._foreach_add([c[0] for c in calls], [c[1] for c in calls], alpha=calls[0][2])]


def lerps(calls: list[tuple]) -> list[tuple[Array]]:
    return [(x,) for x in torch._foreach_lerp([c[0] for c in calls], [c[1] for c in calls], calls[0][2])]


def _is_scaling(kind: Kind) -> bool:
    a, b = kind.ins
    return _is_alone(kind, a) and (b is float or type(b) is Spec and not b.ndim and b.dtype is a.dtype)


def _is_sum(kind: Kind) -> bool:
    a, b = kind.ins
    return _is_alone(kind, a) and b in (int, float)


def _is_lerp(kind: Kind) -> bool:
    """Whether it takes two tensors alike and a number."""
    a, b, weight = kind.ins
    return _is_alone(kind, a) and a == b and weight is float and a.dtype.name in FLOATS


def _is_alone(kind: Kind, a: Any) -> bool:
    """Whether the first operand alone gives the result its spec."""
    return type(a) is Spec and kind.outs == (a,)


# Kernels for many instructions with the same numbers, as the norms of all gradients, their scaling and running statistics are.
LISTED: dict[str, OfMany] = {
    "norm": OfMany(norms, _is_norm_of_all), "mul": OfMany(products, _is_scaling), "add": OfMany(sums, _is_sum),
    "lerp": OfMany(lerps, _is_lerp), "add_scaled": OfMany(scaled_sums, _is_lerp),
}  # fmt: skip


def alike(ins: Instruction) -> Hashable:
    """Instructions for which this is the same can run as a list; None for one that cannot."""
    listed, kind = LISTED.get(ins.op.name), ins.kind
    if listed is None or ins.holes or not listed.fits(kind):
        return None
    _, *others = zip(ins.operands, kind.ins)
    same = tuple(bits(operand) for operand, spec in others if type(spec) is not Spec or not spec.ndim)
    settings = tuple(value for name, value in kind.settings.items() if name != "axis")  # all axes
    return ins.op.name, kind.outs[0].dtype.name, settings, same


def is_tiny(ins: Instruction) -> bool:
    """Whether an instruction takes a CPU less time than its call from Python."""
    return all(spec.numel <= TINY for spec in ins.specs)


def of_list(kind: Kind) -> Callable[..., Any] | None:
    """The kernel of a list whose last instruction is of this kind."""
    listed = LISTED.get(kind.row.name)
    return None if listed is None else partial(listed.run, **kind.settings)
