"""Cancelling the work of clients that are gone. A client's end comes behind all that it asked for, so a worker takes in ahead
of time what it was sent: before each message, and while it is at something long, between large kernels. Collectives are done
all the same, with nothing to give, since other workers may be in them already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops import Kind
from gt.spec import Spec

LARGE = 1 << 16  # elements of an operand or a result from which a kernel counts as large: smaller ones take no time
EVERY = 0.05  # seconds after which a worker that is at something long takes in what came


class Cancelled(BaseException):
    """The client of the instruction at hand is gone. No error, so that no handler of errors takes it for one."""


class Cancellation:
    """Which clients are gone, and when to find out. The shell gives a clock, and `take_in`, which notes in `gone` whose end has
    come; it says whether that could be done."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.now: Callable[[], float] = float
        self.take_in: Callable[[], bool] = bool
        self.due = EVERY

    def watched(self, client: str, kind: Kind, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel; a large one raises Cancelled where its client turns out to be gone."""
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
