"""The default floating-point dtype: `gt.set_default_dtype`. Rows of the op table promote to float32; with another default, an
op whose floats would come from a Python number or from integers alone gets operands cast to it. Cached kinds depend on the
default, so a change makes every session forget them, and the hot path of known ops need not check it."""

from __future__ import annotations

from typing import Any

from gt.client.here import here
from gt.errors import ArgumentTypeError
from gt.spec import DType, bool_, dtype_of, float32, int64


class DefaultDType:
    """The process-wide setting, as in PyTorch."""

    dtype: DType = float32

    def of(self, value: bool | int | float | complex) -> DType:
        """The dtype of a tensor made from a Python number."""
        if isinstance(value, bool):
            return bool_
        if isinstance(value, int):
            return int64
        return self.dtype.to_complex() if isinstance(value, complex) else self.dtype

    def set(self, dtype: Any) -> None:
        want = dtype_of(dtype)
        if want.rank != 2:
            raise ArgumentTypeError(f"only floating-point types are supported as the default type, not {want.name}")
        self.dtype = want
        session = here().session
        with session.lock:
            session.kinds.clear()


DEFAULT = DefaultDType()
