"""The first results of a kind are compared with its specs, and later ones are not."""

from __future__ import annotations

from typing import Any

import pytest

from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport.messages import KindDef, Mail, Run, Welcome
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs.compile import Ready

PAIR = (float32.code, 2, 2)
KINDS = (KindDef(1, "full", ((-3,),), (PAIR[1:], PAIR[0])), KindDef(2, "add", (PAIR, PAIR), ()))


def test_a_program_that_was_prepared_before_them_checks_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(Ready, "check", lambda ready, made: checked.append(ready.kind.row.name))
    worker = Worker(make("numpy"))
    worker.handle(Mail(DISPATCHER, Welcome("w", 0)))
    trace = TraceDef(3, 1, [(2, 2, 1, 1), (2, 3, 2, 2), (2, 4, 3, 3)], (4,))
    worker.handle(Mail(DISPATCHER, Run("c", 1, KINDS, [(1, 1, 1.0), (3, 2, 1), (3, 3, 2)], (), False, 0, (trace,))))
    assert checked == ["full", "add"]
    ready = worker.spaces["c"].kinds[2][2]
    assert worker.spaces["c"].kinds[3][2].function.__globals__["k2"] is ready.run, "its second call runs the kernel itself"
    assert worker.spaces["c"].table[3].tolist() == [[64.0, 64.0], [64.0, 64.0]]
