"""Which buffers are on a worker's device and which in host memory. When the device is full, buffers of the least recently
served client are moved out first. It decides and counts, moves nothing, and knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LEAST = 1 << 16  # least bytes of a buffer that is moved
SLACK = 16  # a move frees 1/16 of the device more than needed, so that not every instruction moves buffers


class DeviceBuffer(NamedTuple):
    """Memory on the device: its client, the engine's number of it, its size."""

    client: str
    number: int
    nbytes: int


class Residency:
    """`device` and `host` are the maximum bytes of tensors there; 0 on the device means no limit. Buffers below `least` bytes
    are not moved."""

    def __init__(self, device: int = 0, host: int = 0, least: int = LEAST) -> None:
        self.device, self.host, self.least = device, host, least
        self.on_device = 0  # an upper bound of the bytes there, unless `stale`
        self.on_host = 0
        self.stale = True  # whether results of executed instructions were not added
        self.out = self.back = 0  # buffers moved to host memory, and back
        self.bytes_out = self.bytes_back = 0
        self.refused = 0  # instructions for which neither the device nor the host had room

    @property
    def moves(self) -> int:
        return self.out + self.back

    def fits(self, nbytes: int) -> bool:
        """Whether `nbytes` more fit on the device, by the current count."""
        return not self.device or (not self.stale and self.on_device + nbytes <= self.device)

    def counted(self, on_device: int, on_host: int) -> None:
        """Set the counted bytes."""
        self.on_device, self.on_host, self.stale = on_device, on_host, False

    def missing(self, nbytes: int) -> int:
        """Bytes that have to be moved out before `nbytes` more fit."""
        return max(0, self.on_device + nbytes - self.device) if self.device else 0

    def choose(self, nbytes: int, order: Iterable[str], buffers: Mapping[str, Iterable[DeviceBuffer]]) -> list[DeviceBuffer]:
        """Buffers to move out for `nbytes` and some slack, or as many as the host has room for. `order` has the clients, the
        least recently served first; of one client the largest buffers are moved first."""
        wanted, room = nbytes + self.device // SLACK, self.host - self.on_host
        found: list[DeviceBuffer] = []
        for client in order:
            for buffer in sorted(buffers.get(client, ()), key=lambda b: (-b.nbytes, b.number)):
                if wanted <= 0:
                    return found
                if self.least <= buffer.nbytes <= room:
                    found.append(buffer)
                    wanted -= buffer.nbytes
                    room -= buffer.nbytes
        return found

    def moved_out(self, nbytes: int) -> None:
        self.out += 1
        self.bytes_out += nbytes
        self.on_host += nbytes
        self.on_device = max(0, self.on_device - nbytes)

    def moved_back(self, nbytes: int) -> None:
        self.back += 1
        self.bytes_back += nbytes
        self.on_host = max(0, self.on_host - nbytes)
        self.on_device += nbytes

    def stats(self) -> dict[str, int]:
        return {
            "host_bytes": self.on_host, "moved_to_host": self.out, "moved_back": self.back, "bytes_to_host": self.bytes_out,
            "bytes_back": self.bytes_back, "no_room": self.refused,
        }  # fmt: skip
