"""The dtype of floats that name none: `gt.set_default_dtype`. Rows of the op table promote to float32; under another default an
op whose floats would come of a Python number or of whole numbers alone is given that dtype's operands instead. Uses of ops are
remembered as they were learnt, so a change makes every session forget them, and nothing is asked on the way of an op that is
known."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.errors import ArgumentTypeError
from gt.ops.table import Row, infer
from gt.spec import DType, bool_, dtype_of, float32, int64


class DefaultDType:
    """The one setting, process-wide as in PyTorch."""

    dtype: DType = float32

    def of(self, value: bool | int | float | complex) -> DType:
        """The dtype of a tensor made of a Python number."""
        if isinstance(value, bool):
            return bool_
        if isinstance(value, int):
            return int64
        return self.dtype.to_complex() if isinstance(value, complex) else self.dtype

    def set(self, dtype: Any) -> None:
        from gt.client.session import here

        want = dtype_of(dtype)
        if want.rank != 2:
            raise ArgumentTypeError(f"only floating-point types are supported as the default type, not {want.name}")
        self.dtype = want
        here().session.forget_kinds()


DEFAULT = DefaultDType()


def in_default(row: Row, operands: tuple, statics: tuple) -> tuple | None:
    """The operands with which the floats of a result are of the default dtype; None where they already are."""
    if DEFAULT.dtype is float32 or any(isinstance(o, Tensor) and o.handle.spec.dtype.rank >= 2 for o in operands):
        return None
    specs = tuple(o.handle.spec if isinstance(o, Tensor) else type(o) for o in operands)
    if not any(isinstance(o, Tensor) for o in operands):
        return None
    if not any(out.dtype is float32 for out in infer(row, specs, statics).outs) or "dtype" in row.statics:
        return None
    numbers = any(type(o) is float for o in operands)
    return tuple([_default(o) if (type(o) is float if numbers else isinstance(o, Tensor)) else o for o in operands])


def _default(operand: Any) -> Tensor:
    from gt.client.functions.create import full

    return operand.to(DEFAULT.dtype) if isinstance(operand, Tensor) else full((), operand, dtype=DEFAULT.dtype)
