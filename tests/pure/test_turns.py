"""A worker's shell between turns of clients: it looks at its other sockets after a slice of time, however many turns wait."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from gt.worker.fair_queue import SLICE
from gt.worker.serve import TURNS, Shell


class Turns:
    """Turns of a client that always has another one to do; each takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.served = seconds, 0.0, 0

    def follow_device(self) -> None: ...

    def next(self) -> str:
        return "c"

    def serve(self, client: str) -> float:
        self.served += 1
        self.now += self.seconds
        return self.now


@pytest.mark.parametrize(("seconds", "turns"), [(10 * SLICE, 1), (0.6 * SLICE, 2), (SLICE / 1000, TURNS)])
def test_long_turns_are_not_taken_in_a_row_without_a_look_at_other_sockets(seconds: float, turns: int) -> None:
    shell = Shell.__new__(Shell)
    shell.inbound, shell.core, shell.turns = deque(), SimpleNamespace(preempted={}), Turns(seconds)  # type: ignore[assignment]
    shell._take_in = lambda: True  # type: ignore[method-assign]
    shell._control(0.0)
    assert shell.turns.served == turns  # type: ignore[attr-defined]
