"""Devices as scripts name them. Which device holds a tensor is the dispatcher's business, so a name decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

DEVICES = ("cpu", "cuda", "mps", "xpu", "gt", "meta")


@dataclass(frozen=True, slots=True, init=False)
class Device:
    """`gt.device("cuda:0")`. A tensor's own is `gt`.

    >>> gt.device("cuda:1").index
    1
    """

    type: str
    index: int | None

    def __init__(self, type: str | int | Device, index: int | None = None) -> None:
        if isinstance(type, Device):
            name, index = type.type, type.index
        elif isinstance(type, int):
            name, index = "cuda", type
        else:
            name = type
        type_, _, number = name.partition(":")
        if type_ not in DEVICES or number and not number.isdecimal():
            raise ValueError(f"no device {name!r}: known are {', '.join(DEVICES)}, or one of them with a number: cuda:0")
        object.__setattr__(self, "type", type_)
        object.__setattr__(self, "index", int(number) if number else index)

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        where = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{where})"
