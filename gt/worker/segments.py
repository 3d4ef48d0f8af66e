"""Bytes that a worker shares with its clients, as its queue sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import ProtocolError
from gt.ops import TABLE
from gt.transport.messages import Run

PATIENCE = 30.0  # seconds that work waits for its client to connect


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


class Absent:
    """Work that needs the bytes of clients that have not connected to this worker yet. It waits, behind it what else is theirs,
    and behind its collectives those of others, as all workers take part in them in one order. Nothing else does. A client that
    never comes is waited for once; then its tensors fail."""

    def __init__(self) -> None:
        self.loaders: set[str] = set()  # clients whose bytes are needed
        self.talkers: set[str] = set()  # clients that use collectives
        self.deadlines: dict[str, float] = {}  # until when clients are waited for
        self.given_up: set[str] = set()  # clients that are not waited for any more
        self.held: list[Run] = []
        self.waiting: set[str] = set()  # whose these are
        self.changed = False  # whether one of them is not waited for any more

    def holds(self, run: Run, memory: Memory, clock: Callable[[], float]) -> bool:
        """Whether this run waits; it is kept then."""
        client = run.client
        for definition in run.kinds:
            row = TABLE.get(definition.op)
            if row is not None and (row.loads or row.collective):
                (self.loaders if row.loads else self.talkers).add(client)
        if not self.waiting and client not in self.loaders:
            return False
        if client in self.loaders and client not in self.given_up and not memory.attached(client):
            self.deadlines.setdefault(client, clock() + PATIENCE)
        elif client not in self.waiting and not (client in self.talkers and self.talkers & self.waiting):
            return False
        self.waiting.add(client)
        self.held.append(run)
        return True

    def released(self, memory: Memory, clock: Callable[[], float]) -> list[Run]:
        """All work that waits, in its order, if some of it need not any more."""
        for client in [c for c, until in self.deadlines.items() if memory.attached(c) or clock() > until or c in self.given_up]:
            if not memory.attached(client):
                self.given_up.add(client)
            del self.deadlines[client]
            self.changed = True
        if not self.changed:
            return []
        runs, self.held, self.changed = self.held, [], False
        self.waiting.clear()
        return runs

    def drop(self, client: str) -> None:
        """A client is gone, and its work is done."""
        self.deadlines.pop(client, None)
        for clients in (self.loaders, self.talkers, self.given_up):
            clients.discard(client)
