"""Memory that a worker shares with the clients of its host."""

from __future__ import annotations

from collections import Counter
from mmap import mmap
from typing import Any, Protocol

import numpy as np

from gt.errors import ProtocolError
from gt.transport import shm
from gt.transport.channels import Channel
from gt.worker.segments import Memory


class SegmentMaps(Protocol):
    """Maps segments of clients as the engine's device reads them."""

    counts: Counter[str]  # of segments, by how they were mapped

    def __call__(self, descriptor: int, length: int, /) -> mmap: ...


class SharedMemory(Memory):
    """The segments of clients on this host, and this worker's segments that it lends them. A segment lent to one client is
    never used for another's bytes."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}  # of clients on this host
        self.pools: dict[str, shm.SegmentPool] = {}  # segments for each client
        self.map: SegmentMaps | None = None  # None for an engine that reads plain mappings

    def share(self, client: str, channel: Channel) -> None:
        self.drop(client)
        self.channels[client] = channel
        channel.map = self.map or channel.map
        self.pools[client] = shm.SegmentPool(channel.drop)

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        if client not in self.channels:
            raise ProtocolError("this worker shares no memory with that client")
        return self.channels[client].view(place, nbytes), True

    def lend(self, client: str, data: memoryview) -> tuple[int, int, int] | None:
        if client not in self.channels or data.nbytes < shm.SMALL:
            return None
        segment = self.pools[client].take(data.nbytes)
        if not self.channels[client].give(segment):
            self.pools[client].give(segment.serial)
            return None
        np.copyto(segment.view(0, data.nbytes), np.frombuffer(data, np.uint8))
        return (segment.serial, 0, data.nbytes)

    def release(self, client: str, segment: int) -> None:
        """A client releases a segment that was lent to it."""
        if client not in self.pools or segment not in self.pools[client].lent:
            raise ProtocolError("cannot release a segment that was not lent to this client")
        self.pools[client].give(segment)

    def drop(self, client: str) -> None:
        """Take back the segments lent to a departed client, and unmap its own."""
        if client in self.channels:
            self.channels.pop(client).close()
            self.pools.pop(client).close()

    def stats(self) -> dict[str, Any]:
        return {"segments": dict(self.map.counts) if self.map is not None else {}}
