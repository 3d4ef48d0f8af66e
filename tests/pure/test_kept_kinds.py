"""Definitions and plans that clients of one program have in common are read and made once."""

from __future__ import annotations

from typing import Any

import pytest

from gt.dispatcher.hosts import Hosts
from gt.dispatcher.plan import FEW, Plan, choose
from gt.dispatcher.tables import Tables, WorkerState
from gt.errors import ProtocolError
from gt.ops import Kind
from gt.spec import Layout, Mesh, Shard, float32
from gt.transport import checks
from gt.transport.checks import kind_in
from gt.transport.messages import KindDef

F = float32.code
SUM = ((F, 4, 6),)


def rows(workers: int) -> Layout:
    return Layout(Mesh((workers,), tuple(range(workers))), (Shard(0),))


def planned(kind: Kind, workers: int = 2, hosts: Hosts | None = None, keep: bool = True) -> Plan:
    return choose(kind, (rows(workers),), None, (), hosts or Hosts(), keep)


def test_a_definition_under_another_number_is_the_same_kind() -> None:
    first, second = kind_in(KindDef(1, "sum", SUM, ((0,), False))), kind_in(KindDef(7, "sum", SUM, [[0], False]))
    assert first is second and first.outs[0].shape == (6,)


@pytest.mark.parametrize("statics", [((1,), False), ((0,), True), ((0,), 0)])
def test_values_that_are_equal_and_of_another_type_are_other_statics(statics: Any) -> None:
    assert kind_in(KindDef(1, "sum", SUM, ((0,), False))) is not kind_in(KindDef(1, "sum", SUM, statics))
    kinds = [kind_in(KindDef(1, "full", ((-3,),), ((2,), F))), kind_in(KindDef(1, "full", ((-2,),), ((2,), F)))]
    assert [kind.ins for kind in kinds] == [(float,), (int,)]


def test_an_invalid_definition_is_refused_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ProtocolError, match="no op"):
            kind_in(KindDef(1, "no such op", (), ()))
    with pytest.raises(ProtocolError, match="64 bits"):
        kind_in(KindDef(1, "sum", SUM, ((1 << 70,), False)))
    with pytest.raises(ProtocolError, match="unexpected object"):
        kind_in(KindDef(1, "sum", SUM, ((object(),), False)))


def test_long_definitions_are_not_kept() -> None:
    many = KindDef(1, "cat", ((F, 2),) * 300, (0,))
    assert kind_in(many) is not kind_in(many)
    for n in range(checks.KEPT + 10):
        kind_in(KindDef(1, "sum", ((F, 1, n),), ((0,), False)))
    assert checks._known.cache_info().currsize == checks.KEPT


def test_a_plan_of_another_client_is_used_again_on_a_few_workers_of_one_host() -> None:
    kind = kind_in(KindDef(1, "sum", SUM, ((0,), False)))
    assert planned(kind) is planned(kind)
    assert planned(kind, 3) is not planned(kind, 2)
    assert planned(kind, keep=False) is not planned(kind)
    apart = Hosts({0: "a", 1: "b"}, {"a", "b"})
    assert planned(kind, hosts=apart) is not planned(kind, hosts=apart)
    assert planned(kind, FEW + 1) is not planned(kind, FEW + 1)


def test_plans_and_layouts_of_a_worker_that_left_are_dropped() -> None:
    tables, of_other_tests = Tables(), known_layouts()
    for index in range(2):
        tables.add(WorkerState(f"w{index}", index, f"w{index}", "numpy", "cpu", "here", index, f"ipc://w{index}"))
    kind = kind_in(KindDef(1, "sum", SUM, ((0,), False)))
    planned(kind)
    assert any(layout.workers == (0, 1) for layout in known_layouts())
    tables.remove(tables.workers[1])
    assert not [layout for layout in known_layouts() if 1 in layout.workers and layout not in of_other_tests]


def known_layouts() -> list[Layout]:
    return [layout for row in list(Layout._known.values()) if (layout := row()) is not None]
