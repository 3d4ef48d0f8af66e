"""A worker's form of a program: its pause points, and its constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport.messages import KindDef, Mail, Run, Welcome
from gt.worker import client_values
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs import compile as executables
from gt.worker.programs.compile import Executable
from gt.worker.turns import Turn

F = float32.code
BIG, SMALL, SCALAR = (F, 512, 512), (F, 2, 2), (F,)
FULL = KindDef(1, "full", ((-3,),), ((512, 512), F))


def defined(kinds: tuple[KindDef, ...], code: list[tuple], trace: TraceDef) -> tuple[Worker, Executable]:
    worker = Worker(make("numpy"))
    worker.executor.turn = Turn(lambda: 0.0, lambda: False)
    worker.handle(Mail(DISPATCHER, Welcome("w", 0)))
    worker.handle(Mail(DISPATCHER, Run("c", 1, kinds, code, traces=(trace,))))
    return worker, worker.spaces["c"].kinds[trace.number][2]


@pytest.mark.parametrize(("several", "slice", "paused"), [(False, 1.0, 0), (True, 1.0, 1), (False, 1e-9, 1)])
def test_a_program_of_less_than_a_turn_is_preempted_only_if_other_clients_are_connected(
    several: bool, slice: float, paused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executables, "SLICE", slice)
    monkeypatch.setattr(executables, "PAUSE", 1e-9)
    sin = KindDef(2, "sin", (BIG,), ())
    worker, program = defined((FULL, sin), [(1, 1, 0.5)], TraceDef(3, 1, [(2, 2, 1), (2, 3, 2), (2, 4, 3)], (4,)))
    asked: list[bool] = []
    turn = worker.executor.turn
    assert turn is not None
    turn.begin(0.0, several)
    monkeypatch.setattr(type(turn), "over", lambda self: bool(asked.append(True)))
    worker.handle(Mail(DISPATCHER, Run("c", 2, (), [(3, 5, 1)])))
    assert len(asked) == 1 + 2 * paused, "before the call, and at each of its pause points"
    assert worker.spaces["c"].table[5][0, 0] == pytest.approx(np.sin(np.sin(np.sin(0.5))), abs=1e-6) and program.calls == 1


def test_what_is_the_same_in_every_call_is_computed_once() -> None:
    like = KindDef(2, "full_like", (SCALAR, (-3,)), (F,))
    total = KindDef(3, "sum", (SMALL,), ((0, 1), False))
    spread = KindDef(4, "spread", (SCALAR, (-3,)), ((2, 2), (0, 1), False))
    mul = KindDef(5, "mul", (SMALL, SMALL), ())
    small = KindDef(1, "full", ((-3,),), ((2, 2), F))
    body = [(3, 2, 1), (2, 3, 2, 1.0), (4, 4, 3, 0.5), (5, 5, 1, 4)]
    kinds = (small, like, total, spread, mul)
    worker, program = defined(kinds, [(1, 1, 3.0)], TraceDef(9, 1, body, (2, 5)))
    assert [ins.op.name for ins in program.lowered.instructions] == ["sum", "mul"] and set(program.lowered.constants) == {3, 4}
    for call in range(3):
        worker.handle(Mail(DISPATCHER, Run("c", 2 + call, (), [(9, 20, 21, 1)])))
        table = worker.spaces["c"].table
        assert table[20] == 12.0 and table[21].tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_a_client_s_programs_hold_few_bytes_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_values, "CONSTANTS", 3 << 20)
    add = KindDef(2, "add", (BIG, BIG), ())
    traces = tuple([TraceDef(10 + n, 1, [(1, 2, float(n)), (2, 3, 1, 2)], (3,)) for n in range(5)])
    worker = Worker(make("numpy"))
    worker.handle(Mail(DISPATCHER, Welcome("w", 0)))
    worker.handle(Mail(DISPATCHER, Run("c", 1, (FULL, add), [(1, 1, 1.0), (14, 2, 1)], traces=traces)))
    programs = [worker.spaces["c"].kinds[10 + n][2] for n in range(5)]
    assert [len(p.lowered.constants) for p in programs] == [1, 1, 1, 0, 0]
    assert worker.spaces["c"].table[2][0, 0] == 5.0
    worker.handle(Mail(DISPATCHER, Run("c", 2, (), [], drops=(10,))))
    worker.handle(Mail(DISPATCHER, Run("c", 3, (), [], traces=(TraceDef(20, 1, traces[0].body, (3,)),))))
    assert len(worker.spaces["c"].kinds[20][2].lowered.constants) == 1, "a dropped program makes room"


def test_a_constant_that_cannot_be_computed_fails_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(make("numpy"))
    worker.handle(Mail(DISPATCHER, Welcome("w", 0)))
    kernel = worker.engine.kernel

    def broken(kind: Any) -> Any:
        def run(*operands: Any) -> Any:
            raise ValueError("no")

        return run if kind.row.name == "full" else kernel(kind)

    monkeypatch.setattr(worker.engine, "kernel", broken)
    kinds = (KindDef(1, "full", ((-3,),), ((2, 2), F)), KindDef(2, "exp", (SMALL,), ()))
    trace = TraceDef(3, 0, [(1, 1, 1.0), (2, 2, 1)], (2,))
    worker.handle(Mail(DISPATCHER, Run("c", 1, kinds, [(3, 7)], traces=(trace,))))
    assert worker.spaces["c"].kinds[3][2].lowered.constants == {} and "no" in worker.spaces["c"].table[7].text


def test_a_value_of_which_only_the_shape_is_used_is_not_computed() -> None:
    total = KindDef(3, "sum", (SMALL,), ((1,), False))
    like = KindDef(2, "full_like", ((F, 2), (-3,)), (F,))
    add = KindDef(4, "add", ((F, 2), (F, 2)), ())
    small = KindDef(1, "full", ((-3,),), ((2, 2), F))
    vector = KindDef(5, "full", ((-3,),), ((2,), F))
    body = [(3, 3, 1), (2, 4, 3, 1.0), (4, 5, 2, 4)]
    kinds = (small, total, like, add, vector)
    worker, program = defined(kinds, [(1, 1, 3.0), (5, 2, 4.0)], TraceDef(9, 2, body, (5,)))
    assert [ins.op.name for ins in program.lowered.instructions] == ["add"]
    worker.handle(Mail(DISPATCHER, Run("c", 2, (), [(9, 7, 1, 2)])))
    np.testing.assert_array_equal(worker.spaces["c"].table[7], [5.0, 5.0])


def test_a_program_of_a_few_small_kernels_counts_as_a_small_kernel() -> None:
    """On a GPU that several clients share, events are recorded around large kernels."""
    sin = KindDef(2, "sin", (SMALL,), ())
    full = KindDef(1, "full", ((-3,),), ((2, 2), F))
    for ops, large in ((4, False), (5, True)):
        trace = TraceDef(3, 1, [(2, 2 + i, 1 + i) for i in range(ops)], (1 + ops,))
        _, program = defined((full, sin), [(1, 1, 0.5)], trace)
        assert program.large is large
    wide = KindDef(2, "sin", (BIG,), ())
    assert defined((FULL, wide), [(1, 1, 0.5)], TraceDef(3, 1, [(2, 2, 1)], (2,)))[1].large
