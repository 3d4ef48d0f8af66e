"""GT_WORKER_BATCH_SIZE: N instructions run as one unit, with the same results."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import gt
from gt.client.scope import HERE
from gt.errors import RemoteError
from gt.program.code import FREE
from gt.testing import cluster
from gt.transport.messages import Run
from gt.worker.engine.torch import inductor
from gt.worker.programs.units import KNOWN, Units

from . import test_replay
from .compiling import compiling, loop, model, settle, stats


def units(c: Any) -> dict[str, float]:
    c.settle()
    return c.workers[0].stats()["traces"]


@settings(max_examples=60, deadline=None)
@given(test_replay.programs())
def test_any_program_gives_the_same_in_units_as_one_by_one(program: dict[str, Any]) -> None:
    found = {}
    for size in (1, 4):
        with cluster(1, "numpy") as c:
            HERE.scope.session.tracer = None
            if size > 1:
                c.workers[0].units = Units(size)
            found[size] = test_replay.values_of(program)
            if size > 1 and program["read"] == "never":
                assert units(c)["unit_calls"] > 0
    for a, b in zip(found[1], found[4]):
        np.testing.assert_array_equal(a, b)


def test_units_count_their_instructions_and_ops_are_counted_as_before() -> None:
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        c.workers[0].units = Units(5)
        x = gt.ones(4)
        c.settle()
        for _ in range(5):  # with their frees, fewer than a first batch has: units end with their message
            x = x * 2.0 - 1.0
        c.settle()
        found = c.workers[0].stats()
        assert found["traces"]["unit_calls"] == 2 and found["traces"]["launches_saved"] == 8
        assert found["ops"]["mul"] == 5 == found["ops"]["sub"]
        np.testing.assert_array_equal(x.numpy(), np.ones(4))


def test_an_id_may_stand_for_one_value_after_another_in_a_unit() -> None:
    """As the dispatcher's temporaries do."""
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        x = gt.full((3,), 2.0)
        y = x * x
        y.numpy()
        worker = c.workers[0]
        worker.units = Units(4)
        [(client, space)] = worker.spaces.items()
        [mul] = [n for n, (_, _, ready) in space.kinds.items() if n > 0 and ready.kind.row.name == "mul"]
        id = x.handle.id
        again = [(mul, -2, id, id), (mul, 900, -2, id), (FREE, -2), (mul, -2, 900, id), (mul, 901, -2, -2)]
        over = [(mul, 902, id, id), (mul, 902, 902, id), (mul, 902, 902, 902), (mul, 903, 902, id)]
        for _ in range(2):
            worker.run(Run(client, 0, (), [*again, *over]))
            found = {id: space.table[id].tolist() for id in (-2, 900, 901, 902, 903)}
            assert found == {-2: [16.0] * 3, 900: [8.0] * 3, 901: [256.0] * 3, 902: [64.0] * 3, 903: [128.0] * 3}
            worker.run(Run(client, 0, (), [(FREE, id) for id in found]))
        assert units(c)["unit_calls"] == 4


def test_units_of_the_same_ops_but_another_topology_are_other_units() -> None:
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        c.workers[0].units = Units(3)
        a, b = gt.tensor([1.0]), gt.tensor([2.0])
        c.settle()
        values = []
        for left, right in ((a, b), (b, a), (a, a), (b, b)):
            values.append(((left * right + left) * right).item())
        values.append(((a * b + b) * b).item())
        assert values == [6.0, 4.0, 2.0, 12.0, 8.0]
        assert units(c)["units"] == 3  # two operands either way round, one operand, and the last
        assert units(c)["unit_calls"] == 5


def test_a_number_that_changes_makes_one_more_unit_and_no_further() -> None:
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        c.workers[0].units = Units(2)
        x = gt.ones(1)
        c.settle()
        assert [((x * 2.0) + float(i)).item() for i in range(6)] == [2.0 + i for i in range(6)]
        assert len(c.workers[0].spaces["c0"].units) == 1
        assert units(c)["units"] == 2 and units(c)["unit_calls"] == 6


def test_in_a_unit_only_failed_values_are_broken() -> None:
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        c.workers[0].units = Units(4)
        x = gt.tensor(np.arange(4))
        c.settle()
        good = x + 1
        bad = gt.linalg.cholesky(-gt.eye(2))
        worse = bad * 2.0
        np.testing.assert_array_equal(good.numpy(), np.arange(4) + 1)
        with pytest.raises(RemoteError, match="cholesky"):
            worse.numpy()
        assert units(c)["units"] == 1 and c.workers[0].executor.failures == 2


def test_results_of_a_failed_unit_are_freed_before_its_instructions_run_one_by_one() -> None:
    """Or a unit that found no room would leave its first instructions none, either."""
    alive: list[Any] = []
    most: list[int] = []
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        worker = c.workers[0]
        worker.units = Units(4)
        plain = worker.engine.kernel

        def counted(kind: Any) -> Any:
            run = plain(kind)

            def exp(a: Any) -> Any:
                most.append(sum(array() is not None for array in alive))
                if len(most) == 4:
                    raise MemoryError("no room for it")
                made = run(a)
                alive.append(weakref.ref(made))
                return made

            return exp if kind.row.name == "exp" else run

        worker.engine.kernel = counted  # type: ignore[method-assign]
        x = gt.ones(4)
        c.settle()
        found = [x.exp() for _ in range(4)]
        for y in found:
            np.testing.assert_allclose(y.numpy(), np.full(4, np.e), rtol=1e-6)
        assert units(c)["unit_calls"] == 1
    assert most == [0, 1, 2, 3, 0, 1, 2, 3]


def test_units_are_bounded_and_outlive_a_forgetting_of_kinds() -> None:
    with cluster(1, "numpy") as c:
        session = HERE.scope.session
        session.tracer = None
        c.workers[0].units = Units(2)
        for n in range(1, KNOWN + 20):
            x = gt.ones(n)
            c.settle()
            assert (x * 2.0 + 1.0).numpy().shape == (n,)
        space = c.workers[0].spaces["c0"]
        assert len(space.units) <= KNOWN and sum(k < 0 for k in space.kinds) <= KNOWN
        for known in session.kinds.tables.values():
            known.clear()
        space.kinds = {n: k for n, k in space.kinds.items() if n >= 0}
        x = gt.ones(3)
        c.settle()
        np.testing.assert_array_equal((x * 2.0 + 1.0).numpy(), np.full(3, 3.0))


def test_hot_units_and_traces_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "build", lambda function, samples: function)
    losses = {}
    for batch in (1, 6):
        with compiling(replay=False) as c:
            if batch > 1:
                c.workers[0].units = Units(batch)
            step = model(lambda p: gt.optim.AdamW(p, lr=0.01), lambda i: 0.01 / (i + 1))
            losses[batch] = loop(c, step, 24, wait=16)
            settle(c)
            assert batch == 1 or stats(c)["compiled_calls"] > 0 and "fallbacks" not in stats(c)
    np.testing.assert_allclose(losses[1], losses[6], rtol=1e-5)
