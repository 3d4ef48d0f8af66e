"""Numbers that compare equal and are not the same: 0.0 and -0.0, and nans. Replay gives the bits of every op by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client import traces
from gt.client.scope import HERE
from gt.testing import cluster
from gt.worker.programs.units import Units
from tests.nn.compare import ENGINES

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect

NUMBERS = (0.0, -0.0, 1, 1.0, True, math.nan, -math.nan, math.inf, -math.inf, 0, False)
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda x, z: x * z,
    "div": lambda x, z: x / z,
    "add": lambda x, z: x + z,
    "copysign": lambda x, z: gt.copysign(x, gt.full((), float(z))),
    "full": lambda x, z: gt.full((3,), float(z)) * x.sign(),
    "maximum": lambda x, z: gt.maximum(x, gt.full((), float(z))),
}


@contextmanager
def clusters(engine: str, replay: bool) -> Any:
    with cluster(1, engine):
        session = HERE.scope.session
        if not replay:
            session.tracer = session.steps = session.asks = None
        elif session.steps is not None:
            session.steps.clock = float  # no step takes too long
        yield session


def bits(loop: Callable[[], Any], engine: str = "numpy", replay: bool = True) -> list[bytes]:
    with clusters(engine, replay):
        return [np.asarray(value).tobytes() for value in loop()]


def both(loop: Callable[[], Any], engine: str = "numpy") -> None:
    assert bits(loop, engine) == bits(loop, engine, replay=False)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_zero_of_the_other_sign_is_another_number(engine: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(traces, "NATIVE", None)

    def loop() -> Any:
        x = gt.tensor([1.0, -2.0, 0.0])
        for i in range(40):
            z = -0.0 if i % 13 == 12 else 0.0
            y = x / z
            for _ in range(6):
                y = y + 1.0 + z
            yield (x * z).numpy()
            yield y.numpy()

    both(loop, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_zeros_of_both_signs_that_change_together_are_two_arguments(engine: str) -> None:
    def loop() -> Any:
        x, signs = gt.tensor([1.0, -2.0, 3.0]), [(0.0, 0.0), (1.0, 1.0), (0.0, -0.0), (2.0, 2.0), (-0.0, 0.0), (-0.0, -0.0)]
        for i in range(36):
            a, b = signs[i % 6]
            y = (x * a).reciprocal() + 1.0
            w = (x * b).reciprocal() + 1.0
            yield gt.stack([y * 2.0, w * 2.0, y - w]).numpy()

    both(loop, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_sent_ahead_tell_the_signs_of_zeros(engine: str) -> None:
    def loop() -> Any:
        v = gt.tensor([1.0, 2.0, 3.0])
        for i in range(80):
            z = -0.0 if i in (40, 51, 52, 79) else 0.0
            v = v * 0.5 + 0.25
            yield (v / z).numpy()

    both(loop, engine)
    with clusters(engine, replay=True) as session:
        assert len([*loop()]) == 80 and session.steps.counts["right"] > 20


def test_calls_sent_early_tell_the_signs_of_zeros() -> None:
    def loop() -> Any:
        x = gt.tensor([1.0, -2.0, 3.0])
        for i in range(60):
            z = (-0.0 if i % 9 == 8 else 0.0) if i % 30 < 25 else 1.0
            y = x * z
            for _ in range(15):
                y = y * 0.5
                y = y + -0.0
            yield y.numpy()

    both(loop)


def test_a_compiled_function_tells_the_signs_of_zeros() -> None:
    def loop() -> Any:
        @gt.compile
        def step(x: Any, z: Any) -> Any:
            return (x * z).reciprocal() * 2.0 + 1.0 - x * 0.5 + x * 0.25

        x = gt.tensor([1.0, -2.0, 3.0])
        for z in (0.0, 0.0, 0.0, 0.0, -0.0, 0.0, -0.0, math.nan, -0.0, math.nan, math.nan, 0.0):
            yield step(x, z).numpy()

    both(loop)


@pytest.mark.parametrize("engine", ENGINES)
def test_products_with_zeros_of_both_signs_are_no_list(engine: str) -> None:
    def loop() -> Any:
        many = [gt.tensor([1.0, -2.0, float(i)]) for i in range(6)]
        for _ in range(8):
            made = [x * (-0.0 if i % 2 else 0.0) for i, x in enumerate(many)]
            yield gt.stack(made).numpy()

    both(loop, engine)


def test_a_unit_of_a_worker_tells_the_signs_of_zeros() -> None:
    def loop() -> Any:
        x = gt.tensor([1.0, -2.0, 3.0])
        for i in range(12):
            yield ((x * (-0.0 if i == 9 else 0.0) + -0.0) * 2.0).reciprocal().numpy()

    with cluster(1, "numpy") as c:
        session = HERE.scope.session
        session.tracer = session.steps = session.asks = None
        c.workers[0].units = Units(4)
        made = [value.tobytes() for value in loop()]
        assert c.workers[0].stats()["traces"]["unit_calls"]
    assert made == bits(loop, replay=False)


STEP = st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 3))


@settings(max_examples=60, deadline=None)
@given(
    body=st.lists(STEP, min_size=1, max_size=9),
    usual=st.lists(st.sampled_from(NUMBERS), min_size=4, max_size=4),
    changes=st.dictionaries(st.integers(0, 39), st.tuples(st.integers(0, 3), st.sampled_from(NUMBERS)), max_size=12),
    carried=st.booleans(),
    engine=st.sampled_from(ENGINES),
)
def test_random_loops_give_the_same_bits_with_and_without_replay(
    body: list, usual: list, changes: dict, carried: bool, engine: str
) -> None:
    def loop() -> Any:
        x = y = gt.tensor([1.5, -2.0, 0.0])
        for i in range(40):
            numbers = list(usual)
            if i in changes:
                numbers[changes[i][0]] = changes[i][1]
            y = y if carried else x
            for op, which in body:
                y = OPS[op](y, numbers[which])
            yield y.numpy()

    both(loop, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loop_with_a_nan_is_replayed(engine: str) -> None:
    def loop() -> Any:
        x = gt.tensor([1.0, -2.0, 3.0])
        for _ in range(30):
            y = x * 2.0 + 1.0
            yield gt.where(y > 3.0, y - 1.0, float("nan")).numpy()  # another object in each step

    both(loop, engine)
    with clusters(engine, replay=True) as session:
        assert len([*loop()]) == 30 and session.tracer.hits + session.steps.counts["right"] > 20
