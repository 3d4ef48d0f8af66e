"""What a worker holds for a client, and what stands there for a tensor that could not be made."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from gt.worker.batch import Unit
from gt.worker.compile import Program, Ready
from gt.worker.times import Times


class Broken:
    """What stands in a tensor's place when it could not be made: the first cause."""

    __array_ufunc__ = None

    def __init__(self, error: str, text: str, tensor: int) -> None:
        self.error, self.text, self.tensor = error, text, tensor

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this tensor could not be made")


class Space:
    """What a worker holds for one client."""

    __slots__ = ("table", "kinds", "counts", "forget", "units", "times")

    def __init__(self) -> None:
        self.table: dict[int, Any] = {}
        self.kinds: dict[int, tuple[int, Callable, Ready | Program]] = {}  # form, kernel, and all about it
        self.counts: Counter[int] = Counter()  # how often each kind was used
        self.forget = 0
        self.units: OrderedDict[tuple, Unit] = OrderedDict()  # by topology, the last used at the end
        self.times: Times | None = None  # when it did what, where the client wants to know
