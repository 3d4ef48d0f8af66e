"""GT's own tensors as arguments of `gt.tensor_ops`: these ops are rows of the op table, with gradients, on a worker."""

from __future__ import annotations

import sys
from typing import Any


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor of GT. If that module is not imported, there are none."""
    module = sys.modules.get("gt.client.autograd")
    return module is not None and isinstance(x, module.Tensor)


def apply(op: str, x: Any, *operands: Any, out: Any, **statics: Any) -> Any:
    if out is not None:
        raise TypeError(f"{op} of a GT tensor takes no out: its values never change")
    return x.op(op, *operands, **statics)


def rms_norm(x: Any, weight: Any, eps: float, out: Any) -> Any:
    if x.ndim == 0 or not is_tensor(weight) or weight.shape != x.shape[-1:]:
        given = tuple(weight.shape) if is_tensor(weight) else type(weight).__name__
        raise ValueError(f"rms_norm of x {tuple(x.shape)}: expected a weight tensor {tuple(x.shape[-1:])}, got {given}")
    return apply("rms_norm", x, float(eps), weight, out=out, ndim=1)[0]
