"""Memory that a client shares with the workers of its host and user: segments that it lends to them, and segments that they
lend to it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

import numpy as np

from gt.errors import ProtocolError
from gt.transport import shm
from gt.transport.channels import TOKEN, Channel, connect
from gt.transport.lent_segments import LentSegments

PASSED = 30.0  # seconds for a slow worker to receive segments that were passed before


class ClientMemory:
    """A client's segments, and its channels to workers. Any thread places bytes; the session's lock orders batches."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}  # to workers of this host and user
        self.passing = threading.Lock()  # segments are passed by one thread at a time
        self.pool = shm.SegmentPool(self._dropped)
        self.lent: LentSegments[int] = LentSegments()

    def share(self, worker: str, address: str) -> bytes:
        """Begin to share memory with a worker, if it is of this host and user. Returns the token of their channel."""
        token = secrets.token_bytes(TOKEN)
        channel = connect(address, token) if address.startswith("ipc://") and shm.supported() else None
        if channel is None:
            return b""
        with self.passing:
            self.channels[worker] = channel
        for segment in self.pool.all_lent():  # instructions that name them may go to this worker
            with self.passing:
                channel.give(segment, PASSED)
        return token

    def part(self, worker: str) -> None:
        with self.passing:
            channel = self.channels.pop(worker, None)
        if channel is not None:
            channel.close()

    def put(self, data: np.ndarray) -> tuple[int, int, int]:
        """Copy the bytes into a segment that every worker can read."""
        segment, at, sealed = self.pool.pack(data)
        self.lent.filled += sealed
        with self.passing:
            for channel in self.channels.values():
                channel.give(segment, PASSED)
        return (segment.serial, at, data.nbytes)

    def _dropped(self, segment: int) -> None:
        with self.passing:
            for channel in self.channels.values():
                channel.drop(segment)

    def sealed(self, serial: int) -> bool:
        return self.lent.sealed(serial)

    def executed(self, serial: int) -> None:
        for segment in self.lent.executed(serial):
            self.pool.give(segment)

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str, release: Callable[[], None]) -> np.ndarray:
        """Bytes that a worker lends; `release` is called when no array refers to them any more."""
        channel = self.channels.get(worker)
        if channel is None:
            raise ProtocolError(f"worker {worker} lends memory that it does not share with this client")
        if nbytes >= shm.LEND:
            return channel.view(place, nbytes, release)
        copy = channel.view(place, nbytes).copy()
        release()
        return copy

    def abandon(self) -> None:
        """In a forked child: drop the parent's segments and channels, even if one of the parent's threads held a lock."""
        self.pool.lock, self.passing = threading.Lock(), threading.Lock()
        self.close()

    def close(self) -> None:
        for worker in list(self.channels):
            self.part(worker)
        self.pool.close()
