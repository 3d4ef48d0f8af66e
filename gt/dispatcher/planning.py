"""Plans the first call of a trace for a layout of its inputs, in slices between which other clients have their turns: first its
instructions one by one, which are sent as they are planned, then the trace of each worker for later calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gt.dispatcher.flow import Flow
from gt.dispatcher.sharded_programs import ShardedProgram, filled, learn, marked
from gt.dispatcher.tables import Client, Tables, TracePlans
from gt.dispatcher.traces import expand

SOLO = 16  # instructions of one worker that take as long to plan as a worker's part of one for several
LEARNT = 2  # parts of instructions that take as long to plan as one instruction of a worker's trace to write


class Rewrites(Protocol):
    """As `Rewriter`."""

    tables: Tables
    left: int

    def rewrite(self, client: Client, code: list, flow: Flow) -> int | None: ...


class Planning:
    """The part of a call that is not planned yet."""

    def __init__(self, client: Client, use: TracePlans, call: tuple, key: tuple) -> None:
        self.use, self.call, self.key, self.replans = use, call, key, client.replans
        self.planned = expand(client, use, marked(use, call))
        self.at = 0  # of the next instruction
        self.codes: dict[int, list] = {}  # the planned instructions of each worker
        self.learning: Iterator[ShardedProgram | int] | None = None

    def advance(self, rewriter: Rewrites, client: Client, flow: Flow) -> bool:
        """Plan as much as one slice has room for. Returns whether all is planned."""
        while self.at < len(self.planned):
            if rewriter.left <= 0:
                return False
            self._plan(rewriter, client, flow)
        if self.learning is None:
            self.learning = learn(client, self.use, self.call, self.key[1:], self.codes, self.planned)
        while rewriter.left > 0 and client.replans == self.replans:
            match next(self.learning, None):
                case int(count):
                    rewriter.left -= LEARNT * count
                case sharded:
                    if sharded is not None:
                        client.plans[self.key] = sharded
                    return True
        return client.replans != self.replans  # workers came or went: the plan of this call serves no other

    def _plan(self, rewriter: Rewrites, client: Client, flow: Flow) -> None:
        """Plan as many instructions as one slice has room for if all are for several workers."""
        count = 1 + rewriter.left // max(len(rewriter.tables.by_peer), 1)
        code = [ins for _, ins in self.planned[self.at : self.at + count]]
        apart = flow.fork()
        rewriter.rewrite(client, code, apart)
        rewriter.left -= 1 + len(code) // SOLO
        self.at += len(code)
        for worker, instructions in apart.code.items():
            flow.queue(worker).extend(filled(instructions, self.call))
            self.codes.setdefault(worker, []).extend(instructions)
