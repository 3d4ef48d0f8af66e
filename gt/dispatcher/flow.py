"""The messages for workers that one batch of a client becomes."""

from __future__ import annotations

from gt.program.wire import TraceDef
from gt.transport.messages import Fetch, KindDef, Mail


class Flow:
    """Instructions, new kinds and reads for each worker, and other mail, gathered while a batch is rewritten."""

    __slots__ = ("code", "kinds", "traces", "gets", "mail", "expanded", "refused")

    def __init__(self) -> None:
        self.code: dict[int, list] = {}
        self.kinds: dict[int, list[KindDef]] = {}
        self.traces: dict[int, list[TraceDef]] = {}
        self.gets: dict[int, list[Fetch]] = {}
        self.mail: list[Mail] = []
        self.expanded = 0  # instructions that expanded calls became
        self.refused: list[str] = []  # the reason of each refused instruction or definition

    def fork(self) -> Flow:
        """A flow of the same batch with separate instructions."""
        other = Flow()
        other.kinds, other.traces, other.gets, other.mail = self.kinds, self.traces, self.gets, self.mail
        other.expanded, other.refused = self.expanded, self.refused
        return other

    def queue(self, worker: int) -> list:
        return self.code.setdefault(worker, [])
