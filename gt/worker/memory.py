"""Bytes that a worker shares with its clients, as its queue sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import ProtocolError
from gt.ops import Kind

PATIENCE = 30.0  # seconds that others wait for a client that does not connect


class Memory:
    """Where bytes come from and go to beside the messages; the shell gives one that shares memory with clients."""

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        """The bytes a client placed, and whether they must be copied before this returns to the queue."""
        raise ProtocolError("this worker shares no memory with its clients")

    def attached(self, client: str) -> bool:
        """Whether the client is connected to this worker yet, which its bytes need."""
        return True

    def lend(self, client: str, data: memoryview) -> tuple[int, int, int] | None:
        """A place where the client can see these bytes, or None where they should travel in a frame."""
        return None


class Attaching:
    """Waiting for a client that has not connected to this worker yet. One that never does costs its own tensors, in the end."""

    kind: Kind | None = None
    tag = 0

    def __init__(self, memory: Memory, client: str, clock: Callable[[], float]) -> None:
        self.memory, self.client, self.clock = memory, client, clock
        self.until = clock() + PATIENCE

    def ready(self) -> bool:
        return self.memory.attached(self.client) or self.clock() > self.until

    def result(self) -> list[Any]:
        return []

    def ask(self) -> None:
        """There is nobody to ask."""

    def missing(self) -> list[int]:
        return []
