"""The precision of products of float32 matrices, for the whole process, as in PyTorch. Clients send it with the kinds of their
products, so that each has its own on shared workers."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakSet

from gt.errors import ArgumentError
from gt.ops.table import HIGHEST, PRECISIONS


class FollowsPrecision(Protocol):
    """An object that is told of a change of the precision."""

    def change_precision(self, before: str, now: str) -> None: ...


class Precision:
    """The setting, and the objects that follow it."""

    def __init__(self) -> None:
        self.value = HIGHEST
        self.users: WeakSet[FollowsPrecision] = WeakSet()

    def set(self, value: str) -> None:
        if value not in PRECISIONS:
            raise ArgumentError(f"precision is {value!r}: expected one of {', '.join(PRECISIONS)}")
        before, self.value = self.value, value
        for user in tuple(self.users) if before != value else ():
            user.change_precision(before, value)


PRODUCTS = Precision()
