"""Bytes that a worker shares with its clients, as its queue sees them."""

from __future__ import annotations

from typing import Any

from gt.errors import ProtocolError


class Memory:
    """Where bytes come from and go to beside the messages; the shell gives one that shares memory with clients."""

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        """The bytes a client placed, and whether they must be copied before this returns to the queue."""
        raise ProtocolError("this worker shares no memory with its clients")

    def lend(self, client: str, data: memoryview) -> tuple[int, int, int] | None:
        """A place where the client can see these bytes, or None where they should travel in a frame."""
        return None
