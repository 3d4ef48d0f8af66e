"""Shared memory between a worker and its clients, as an interface of the queue."""

from __future__ import annotations

from typing import Any

from gt.errors import ProtocolError


class Memory:
    """Transfers of tensor bytes outside messages; the shell's implementation shares memory with clients."""

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        """A client's bytes at a place, and whether they must be copied before the queue continues."""
        raise ProtocolError("this worker shares no memory with its clients")

    def lend(self, client: str, data: memoryview) -> tuple[int, int, int] | None:
        """A place where the client can read these bytes, or None if they have to be sent in a frame."""
        return None
