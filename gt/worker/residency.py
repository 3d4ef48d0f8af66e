"""Which buffers lie on a worker's device and which in host memory. On a full device the buffers of the client that was served
longest ago make room first. It decides and counts; it moves nothing, and knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

LEAST = 1 << 16  # bytes of a buffer from which on it is worth a move
SLACK = 16  # a move frees this part of the device besides what is needed, so that not every instruction moves something


class DeviceBuffer(NamedTuple):
    """Memory on the device: whose it is, the number by which the engine knows it, its size."""

    client: str
    number: int
    nbytes: int


class Residency:
    """`device` and `host` are the most bytes that tensors may take there; 0 on the device is no limit that is counted. Buffers
    below `least` bytes stay where they are."""

    def __init__(self, device: int = 0, host: int = 0, least: int = LEAST) -> None:
        self.device, self.host, self.least = device, host, least
        self.on_device = 0  # never less than what lies there, as long as `stale` is false
        self.on_host = 0
        self.stale = True  # instructions ran whose results were not added
        self.out = self.back = 0  # buffers that were moved to host memory, and back
        self.bytes_out = self.bytes_back = 0
        self.refused = 0  # instructions that had no room on the device, nor others' memory any in the host

    @property
    def moves(self) -> int:
        return self.out + self.back

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes more are within the device, as far as it is counted."""
        return not self.device or (not self.stale and self.on_device + nbytes <= self.device)

    def counted(self, on_device: int, on_host: int) -> None:
        """What really lies there."""
        self.on_device, self.on_host, self.stale = on_device, on_host, False

    def missing(self, nbytes: int) -> int:
        """Bytes that have to leave the device before so many more are put there."""
        return max(0, self.on_device + nbytes - self.device) if self.device else 0

    def choose(self, nbytes: int, order: Iterable[str], buffers: Mapping[str, Iterable[DeviceBuffer]]) -> list[DeviceBuffer]:
        """Buffers whose moves free so many bytes and some slack, or as many as the host has room for. `order` has the clients,
        the one that was served longest ago first; of a client the largest buffers go first, so that few are moved."""
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
