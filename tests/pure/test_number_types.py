"""Numbers of instructions have their kinds' types: a float for an integer would give a result of another dtype than all that
use it expect."""

from __future__ import annotations

import pytest

from gt.program.wire import TraceDef
from gt.spec import int64
from gt.transport import messages as m
from gt.worker.client_values import Broken
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER

SPEC = (int64.code, 3)
FULL = m.KindDef(1, "full", ((-2,),), (SPEC[1:], SPEC[0]))
ADD = m.KindDef(2, "add", (SPEC, (-2,)), ())


@pytest.fixture(params=("numpy", "cpu"))
def worker(request):
    made = Worker(make(request.param))
    made.handle(m.Mail(DISPATCHER, m.Welcome("w", 0)))
    return made


def value(worker, id):
    found = worker.spaces["c"].table[id]
    return found.text if isinstance(found, Broken) else found.tolist()


def test_a_number_has_the_type_of_its_kind(worker):
    code = [(1, 1, 5), (2, 2, 1, 2), (2, 3, 1, 2.5), (2, 4, 1, True), (2, 5, 3, 1)]
    worker.handle(m.Mail(DISPATCHER, m.Run("c", 1, (FULL, ADD), code)))
    assert value(worker, 2) == [7, 7, 7]
    for id in (3, 4, 5):
        assert "expected int" in value(worker, id)


def test_so_has_a_number_of_a_call(worker):
    trace = TraceDef(3, 1, [(2, 2, 1, 0)], (2,), (((0, 3),),), ())
    worker.handle(m.Mail(DISPATCHER, m.Run("c", 1, (FULL, ADD), [(1, 1, 5)], (), False, 0, (trace,))))
    worker.handle(m.Mail(DISPATCHER, m.Run("c", 2, (), [(3, 2, 1, 2), (3, 3, 1, 2.5)])))
    assert value(worker, 2) == [7, 7, 7] and "expected int" in value(worker, 3)
