"""Cancels the work of departed clients. A client's Drop comes after all its instructions, so a worker receives messages ahead
of executing them: before each message and, during long instructions, between large kernels.

A collective that some worker has begun has to be executed by all its members, without data; no other one is. Each worker
that learns of a client's departure reports how many collectives it has begun, and begins none of that client's until the
dispatcher has received all reports and sent the largest count."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gt.ops import Kind
from gt.spec import Spec
from gt.worker.collectives.mail import Members, PendingCollective

LARGE = 1 << 16  # elements of an operand or a result from which a kernel counts as large: smaller ones are fast
EVERY = 0.05  # seconds after which a worker within a long instruction receives messages


class Parked(BaseException):
    """The queue waits for other workers. A BaseException, so that error handlers do not catch it."""

    def __init__(self, instruction: tuple, wait: PendingCollective) -> None:
        self.instruction, self.wait = instruction, wait


class Cancelled(BaseException):
    """The client of the current instruction has left. A BaseException, so that error handlers do not catch it."""


class Cancellation:
    """The departed clients whose work is not yet skipped. The shell sets a clock and `take_in`, which receives messages and
    notes Drops, and returns whether it could."""

    def __init__(self) -> None:
        self.gone: dict[str, deque[int]] = {}  # numbers of the pending Drops of each client; a later client may reuse the name
        self.limits: dict[int, dict[Members, int]] = {}  # by Drop number, the largest count of begun collectives of each group
        self.now: Callable[[], float] = float
        self.take_in: Callable[[], bool] = bool
        self.due = EVERY

    def note(self, client: str, number: int) -> bool:
        """Note a client's Drop. Returns whether it is new."""
        numbers = self.gone.setdefault(client, deque())
        if number in numbers:
            return False
        numbers.append(number)
        return True

    def settle(self, number: int, counts: Iterable[tuple[Members, int]]) -> None:
        """Note the largest counts of begun collectives, if the Drop is still pending here."""
        if any(number in numbers for numbers in self.gone.values()):
            self.limits[number] = dict(counts)

    def limit(self, client: str, group: Members) -> int | None:
        """The last of a group's collectives to execute for a departed client; None while unknown."""
        limits = self.limits.get(self.gone[client][0])
        return limits.get(group, 0) if limits is not None else None

    def over(self, client: str) -> None:
        """All work of a departed client is executed or skipped."""
        numbers = self.gone[client]
        self.limits.pop(numbers.popleft(), None)
        if not numbers:
            del self.gone[client]

    def watched(self, client: str, kind: Kind, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel; a large one raises Cancelled if its client has left."""
        if not any(isinstance(s, Spec) and s.numel >= LARGE for s in (*kind.ins, *kind.outs)):
            return kernel

        def run(*operands: Any) -> Any:
            if self.now() > self.due:
                self._find_out(client)
            return kernel(*operands)

        return run

    def _find_out(self, client: str) -> None:
        if self.take_in():
            self.due = self.now() + EVERY
            if client in self.gone:
                raise Cancelled


class OrphanedCollective:
    """A collective of a departed client, until it is known whether another worker has begun it."""

    def __init__(
        self, of: Cancellation, client: str, kind: Kind, tag: int, number: int, begin: Callable[[], PendingCollective]
    ) -> None:
        self.of, self.client, self.kind, self.tag, self.number, self.begin = of, client, kind, tag, number, begin
        self.pending: PendingCollective | None = None
        self.late = False

    def ready(self) -> bool:
        if self.pending is None:
            limit = self.of.limit(self.client, self.kind.settings["group"])
            if limit is not None and self.number > limit:
                return True
            if limit is None and not self.late:
                return False
            self.pending = self.begin()
        return self.pending.ready()

    def result(self) -> list[Any]:
        return self.pending.result() if self.pending is not None else []

    def ask(self) -> None:
        if self.pending is not None:
            self.pending.ask()

    def missing(self) -> list[int]:
        return self.pending.missing() if self.pending is not None else []

    def give_up(self, why: str) -> None:
        """A worker that has not reported its count may have begun this collective."""
        if self.pending is not None:
            self.pending.give_up(why)
        self.late = True
