"""Handles of values on the workers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from gt.client.native import NATIVE
from gt.client.session import Session
from gt.program.code import free
from gt.spec import Spec


class Handle(msgspec.Struct, gc=False, eq=False):
    """A value on the workers. It never changes, and is freed with the last reference to its handle. (Creating a Struct takes a
    third of the time of a plain object, and one is created for every op.)"""

    id: int
    spec: Spec
    session: Session
    source: int | None = None  # for a view's value: the id of the last base's value

    def __del__(self) -> None:
        self.session.emit(free(self.id))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> Any:
        return self.spec.dtype

    def numpy(self) -> np.ndarray:
        """Read the value."""
        return self.session.read(self.id, self.spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<{self.spec.dtype.name}{list(self.spec.shape)} on the workers>"


def origin_id(handle: Handle) -> int:
    """The id of the memory that this value would have in PyTorch: its own, or for a view's value the base's."""
    return handle.source or handle.id


if NATIVE is not None:
    for _name in ("shape", "dtype", "numpy", "__array__", "__repr__"):
        setattr(NATIVE.Handle, _name, vars(Handle)[_name])
    Handle = NATIVE.Handle  # type: ignore[misc]
