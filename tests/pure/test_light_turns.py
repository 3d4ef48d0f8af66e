"""Turns of small kernels: which count as small, and what they cost."""

from __future__ import annotations

import pytest

from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.transport.messages import KindDef, Mail, Run, Welcome
from gt.worker.client_turns import ClientTurns
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs.compile import Ready

SOLVE = KindDef(2, "inverse", ((float32.code, 100, 100),), ())
MADE = KindDef(1, "full", ((-3,),), ((100, 100), float32.code))
SQUARE = Spec((100, 100), float32)


@pytest.mark.parametrize(("name", "large"), [("svd", True), ("eigh", True), ("exp", False)])
def test_a_small_kernel_that_takes_long_counts_as_large(name: str, large: bool) -> None:
    kind = infer(TABLE[name], (SQUARE,), (False,) if name == "svd" else ())
    assert Ready(kind, len).large == large


def test_a_short_run_of_kernels_that_take_long_makes_room_for_who_was_idle() -> None:
    core, now = Worker(make("numpy")), [0.0]
    core.handle(Mail(DISPATCHER, Welcome("w0", 0)))

    def clock() -> float:
        now[0] += 1e-3
        return now[0]

    def take_in() -> bool:
        if "d" not in turns.queue.shares:
            turns.put("d", Run("d", 1, (MADE,), [(1, 1, 7.0)]))
        return True

    turns = ClientTurns(core, clock, take_in, lambda: False, lambda mails: None)
    turns.put("c", Run("c", 1, (MADE, SOLVE), [(1, 1, 1.0), *((2, n, 1) for n in range(2, 20))]))
    assert turns.next() == "c"
    turns.serve("c")
    assert "c" in core.preempted and turns.next() == "d"
