"""`torch.types`: names for annotations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO, Any, TypeAlias

from gt.client.autograd import Tensor
from gt.device import Device as _device
from gt.spec import DType as _dtype
from gt.spec import Size

Number: TypeAlias = int | float | bool
Device: TypeAlias = _device | str | int | None
FileLike: TypeAlias = str | os.PathLike[str] | IO[bytes]
_TensorOrTensors: TypeAlias = Tensor | Sequence[Tensor]
_int, _float, _bool, _complex, _str, _bytes = int, float, bool, complex, str, bytes
_size: TypeAlias = Size | list[int] | tuple[int, ...]
_layout: TypeAlias = Any

__all__ = ["Device", "FileLike", "Number", "Size", "Tensor", "_dtype"]
