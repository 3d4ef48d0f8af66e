"""`torch.nn.common_types`: names for annotations."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor

_size_any_t = int | tuple[int, ...]
_size_1_t = int | tuple[int]
_size_2_t = int | tuple[int, int]
_size_3_t = int | tuple[int, int, int]
_size_4_t = int | tuple[int, int, int, int]
_size_6_t = int | tuple[int, int, int, int, int, int]
_ratio_2_t = float | tuple[float, float]
_ratio_3_t = float | tuple[float, float, float]
_ratio_any_t = float | tuple[float, ...]
_tensor_list_t = Tensor | list[Tensor]
_maybe_indices_t = Any

__all__: list[str] = []
