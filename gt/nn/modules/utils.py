"""`torch.nn.modules.utils`: a number as one for each axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _ntuple(n: int) -> Callable[[Any], tuple]:
    return lambda x: tuple(x) if isinstance(x, Iterable) else (x,) * n


_single, _pair, _triple, _quadruple = (_ntuple(n) for n in (1, 2, 3, 4))
__all__: list[str] = []
