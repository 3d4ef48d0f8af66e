"""Every row on any placement of its inputs, on one to four workers: the numbers are those of one worker."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gt
from gt.client.apply import apply
from gt.config import SignalConfig
from gt.dispatcher import plan
from gt.ops import Row
from gt.spec import Layout, Mesh, Partial, Spec
from gt.testing import cluster
from gt.worker.engine.choose import make as engine_for
from tests.memory.layouts import grained, layouts, meshes, put
from tests.ops import samples
from tests.ops.samples import ROWS, assert_close, assert_same, several

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", 3))  # for each row; a long run asks for more
ENGINE = engine_for("numpy")
SAMPLES = {r.name: list(samples.plain(r)) for r in ROWS}


@st.composite
def signals(draw, ndim: int, workers: int):
    """A signal on some workers, or none."""
    if draw(st.booleans()):
        return None
    mesh = draw(meshes(workers))
    axes = st.sampled_from(["replicate", *[f"shard({i})" for i in range(-ndim, ndim)], "shard(0)"])
    names = {f"d{i}": n for i, n in enumerate(mesh.shape)}
    return SignalConfig(mesh=names, placement=[draw(axes) for _ in mesh.shape], workers=list(mesh.workers))


def check(row: Row, data: st.DataObject) -> None:
    sample = data.draw(st.sampled_from(SAMPLES[row.name]))
    kind = sample.kind
    operands = [grained(o) for o in sample.operands]
    workers = data.draw(st.integers(1, 4))
    common = data.draw(meshes(workers)) if data.draw(st.booleans()) else None
    same = len(set(kind.ins)) == 1 and len(kind.ins) == 2 and data.draw(st.booleans())
    if same:
        operands[1] = operands[0]
    wanted = several(ENGINE.kernel(kind)(*[o.copy() if isinstance(o, np.ndarray) else o for o in operands]))
    signal = data.draw(signals(kind.outs[0].ndim, workers))
    with cluster(workers) as made, gt.no_grad():
        tensors = []
        for o, s in zip(operands, kind.ins):
            if not isinstance(s, Spec):
                tensors.append(o)
                continue
            layout = data.draw(layouts(s, common or data.draw(meshes(workers)), terms=s.dtype.is_signed))
            tensors.append(put(made, o, s, layout))
        if same:
            tensors[1] = tensors[0]
        if signal is not None:
            gt.register_config("s", signal)
            with gt.signal.context("s"):
                found = several(apply(row, tuple(tensors), kind.statics))
        else:
            found = several(apply(row, tuple(tensors), kind.statics))
        assert_same(kind, [f.numpy() for f in found], wanted, f"{kind}", (1e-4, 1e-4))
        for t, o, s in zip(tensors, operands, kind.ins):  # operands reduced on the way are unchanged, but for terms' rounding
            if isinstance(t, gt.Tensor):
                assert_close(t.numpy(), o, s, f"an operand of {kind}", max((1e-6, 1e-6), samples.coarsest(kind)))
        t = None
        del found, tensors, t


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_any_layout_gives_the_numbers_of_one_worker(row, data):
    check(row, data)


@given(data=st.data())
@settings(max_examples=60, deadline=None, database=None)
def test_moving_from_any_layout_to_any_other_keeps_the_values(data):
    workers = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=0, max_size=3)))
    spec = Spec(shape, gt.float32)
    array = grained(np.random.default_rng(0).normal(size=shape).astype("float32"))
    with cluster(workers) as made:
        x = put(made, array, spec, data.draw(layouts(spec, data.draw(meshes(workers)))))
        mesh = data.draw(meshes(workers))
        goal = data.draw(layouts(spec, mesh, terms=False))
        names = {f"d{i}": n for i, n in enumerate(mesh.shape)}
        gt.register_config("s", SignalConfig(mesh=names, placement=list(goal.placements), workers=list(mesh.workers)))
        y = gt.signal.tensor(x, name="s")
        np.testing.assert_array_equal(y.numpy(), array)
        np.testing.assert_array_equal(x.numpy(), array)
        assert made.dispatcher.tables.clients["c0"].entries[y.handle.id].layout is goal


def test_a_rule_that_does_not_hold_is_found(monkeypatch):
    """The generated test above can fail: with a false rule in the table, it does."""
    row = next(r for r in ROWS if r.name == "exp")
    false = lambda kind: [((Partial(),), (Partial(),))]  # noqa: E731
    array = grained(np.random.default_rng(0).normal(size=(2, 3)).astype("float32"))
    spec = Spec((2, 3), gt.float32)
    layout = Layout(Mesh((2,), (0, 1)), (Partial(),))
    with cluster(2) as made:
        assert_close(put(made, array, spec, layout).exp().numpy(), np.exp(array), spec)
    with cluster(2) as made:
        monkeypatch.setattr(plan, "rules_of", false)
        monkeypatch.setattr(plan, "_kept", plan._kept.__wrapped__)  # else the plan of the true rule is found
        with pytest.raises(AssertionError):
            assert_close(apply(row, (put(made, array, spec, layout),)).numpy(), np.exp(array), spec)
