"""Replay is a cache over eager execution: the results of any program are the same without it, and it is counted."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client import compile
from gt.client.scope import HERE
from gt.nn import SGD, Linear
from gt.testing import Cluster, cluster

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


@contextmanager
def stream(replay: bool, engine: str = "numpy", workers: int = 1) -> Any:
    with cluster(workers, engine) as c:
        if not replay:
            HERE.scope.session.tracer = None
        yield c


def tracer(c: Cluster) -> Any:
    return c.sessions[0].tracer


# A random program: a loop whose body is a list of ops over variables; some numbers change each time, some results are kept,
# some values are read in the middle, and now and then the body takes another branch.
OPS = ("add", "mul", "sub", "relu", "scale", "shift", "sum", "transpose", "matmul", "slice", "window")
STEP = st.tuples(st.sampled_from(OPS), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))


@st.composite
def programs(draw: Any) -> dict[str, Any]:
    return {
        "body": draw(st.lists(STEP, min_size=2, max_size=12)),
        "other": draw(st.lists(STEP, min_size=1, max_size=6)),
        "times": draw(st.integers(3, 14)),
        "changing": draw(st.booleans()),
        "keep": draw(st.integers(0, 6)),
        "read": draw(st.sampled_from(["never", "end", "middle", "sometimes"])),
        "branch": draw(st.integers(3, 20)),
        "mark": draw(st.booleans()),
    }


def apply(op: str, a: Any, b: Any, number: float) -> Any:
    match op:
        case "add":
            return a + b
        case "mul":
            return a * b * 0.5
        case "sub":
            return a - b
        case "relu":
            return a.relu()
        case "scale":
            return a * number
        case "shift":
            return a + number
        case "sum":
            return a * 0.1 + a.sum(axis=0)
        case "transpose":
            return a.T * 0.5
        case "matmul":
            return (a @ b) * 0.1
        case "window":
            start = round(number * 100) % 3
            return gt.cat([a[start : start + 2], b[:2]])
    return gt.cat([a[1:], a[:1]])


def values_of(program: dict[str, Any]) -> list[np.ndarray]:
    v = [gt.tensor(np.cos(np.arange(16.0) * (k + 1)).reshape(4, 4).astype(np.float32)) for k in range(5)]
    seen, kept = [], []
    for i in range(program["times"]):
        body = program["other"] if i % program["branch"] == program["branch"] - 1 else program["body"]
        for k, (op, to, a, b) in enumerate(body):
            v[to] = apply(op, v[a], v[b], 0.9 + 0.01 * (i if program["changing"] else 0)).tanh()
            if program["keep"] and (i + k) % 7 == program["keep"]:
                kept.append(v[to])
            if k == 1 and (program["read"] == "middle" or program["read"] == "sometimes" and i % 4 == 3):
                seen.append(v[to].numpy())
        if program["read"] == "end":
            seen.append(v[0].numpy())
        if program["mark"]:
            HERE.scope.session.mark()
    return seen + [x.numpy() for x in (*v, *kept)]


def run(program: dict[str, Any], replay: bool) -> tuple[list, dict]:
    with stream(replay) as c:
        return values_of(program), tracer(c).stats() if replay else {}


@settings(max_examples=150, deadline=None)
@given(programs())
def test_any_program_gives_the_same_with_replay_as_without(program: dict[str, Any]) -> None:
    with_replay, _ = run(program, True)
    without, _ = run(program, False)
    assert len(with_replay) == len(without)
    for a, b in zip(with_replay, without):
        np.testing.assert_array_equal(a, b)


def test_a_training_loop_is_found_and_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_EARLY", "0")  # each step is called by itself
    losses = {}
    for replay in (True, False):
        with stream(replay, "pytorch") as c:
            losses[replay] = train(12)
            if replay:
                assert tracer(c).hits == 9 and tracer(c).found == 1
                done = c.workers[0].stats()["traces"]
                assert done["calls"] == 9 and done["launches_saved"] > 100
    assert losses[True] == losses[False]


def train(steps: int, rate: Any = lambda i: 0.1, read: bool = True) -> list[float]:
    gt.manual_seed(0)
    first, second = Linear(8, 16), Linear(16, 4)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
    x, y = gt.randn(32, 8), gt.randn(32, 4)
    losses = []
    for i in range(steps):
        optimizer.param_groups[0]["lr"] = rate(i)
        loss = ((second(first(x).relu()) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item() if read else loss)
    return [loss if read else loss.item() for loss in losses]


@pytest.mark.parametrize("read", [True, False])
def test_a_number_that_changes_each_step_is_given_with_the_call(read: bool) -> None:
    losses = {}
    for replay in (True, False):
        with stream(replay) as c:
            losses[replay] = train(12, lambda i: 0.1 / (i + 1), read)
            if replay:
                assert tracer(c).hits >= 9
    assert losses[True] == losses[False]


def test_a_number_that_begins_to_change_makes_one_more_trace_not_many() -> None:
    with stream(True) as c:
        train(20, lambda i: 0.1 if i < 8 else 0.1 / i)
        assert tracer(c).found <= 3
        assert tracer(c).misses["a number changed"] <= 2
        assert tracer(c).hits >= 15


def test_numbers_that_change_each_by_itself_end_as_a_hole_each() -> None:
    places = np.random.default_rng(0).integers(0, 2, (60, 12)).tolist()  # of one step: which elements are picked

    def loop() -> list[float]:
        x, found = gt.arange(8.0), []
        for picked in places:
            found.append(gt.stack([x[place] * 2 for place in picked]).square().sum().item())
        return found

    with stream(True) as c:
        read = loop()
        assert tracer(c).found <= 12
        assert tracer(c).hits >= 45
    assert read == [float(4 * sum(p * p for p in picked)) for picked in places]


def test_programs_of_the_same_kinds_but_another_topology_share_no_trace() -> None:
    def loop(swap: bool) -> np.ndarray:
        x, a, b = gt.ones(4, 4), gt.full((4, 4), 0.5), gt.full((4, 4), 0.25)
        for i in range(12):
            first, second = (a, b) if not swap or i % 2 == 0 else (b, a)
            x = ((x * first + second) * a + b) * first
            HERE.scope.session.mark()
        return x.numpy()

    for swap in (False, True):
        with stream(True) as c:
            mine = loop(swap)
            assert tracer(c).hits > 0
        with stream(False):
            np.testing.assert_array_equal(mine, loop(swap))


def test_a_loop_without_reads_or_marks_is_found_by_its_period() -> None:
    with stream(True) as c:
        x, a, b = gt.ones(4), gt.full((4,), 0.99), gt.full((4,), 0.1)
        for _ in range(1000):
            x = x * a + b
        mine = x.numpy()
        assert tracer(c).hits >= 10 and tracer(c).saved > 1200
    want = np.ones(4, np.float32)
    for _ in range(1000):
        want = want * np.float32(0.99) + np.float32(0.1)
    np.testing.assert_allclose(mine, want, rtol=1e-6)


def test_a_call_on_tensors_of_several_workers_is_taken_apart() -> None:
    with stream(True, workers=2) as c:
        train(10)
        assert tracer(c).hits > 0


def test_traces_are_bounded() -> None:
    from gt.client import tracer as traces

    with stream(True) as c:
        x = gt.ones(4)
        for k in range(traces.KNOWN + 40):
            for _ in range(3):
                y = x
                for _ in range(5 + k % 60):
                    y = y * 2.0 if k < 60 else y + 1.0 if k < 120 else y - 1.0
                y.numpy()
        assert sum(map(len, tracer(c).traces.values())) <= traces.KNOWN
        assert len(c.workers[0].spaces["c0"].kinds) < traces.KNOWN + 200


def step_function(momentum: float = 0.9) -> tuple[Any, Any, list]:
    gt.manual_seed(0)
    first, second = Linear(8, 16), Linear(16, 4)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = SGD(parameters, lr=0.1, momentum=momentum)
    x, y = gt.randn(32, 8), gt.randn(32, 4)

    def step(x: Any) -> Any:
        loss = ((second(first(x).relu()) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, x, parameters


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_compiled_step_trains_as_the_plain_one_and_runs_its_python_three_times(momentum: float) -> None:
    found = {}
    for compiled in (True, False):
        with stream(True):
            step, x, parameters = step_function(momentum)
            calls = [0]

            def counted(x: Any, step: Any = step, calls: list = calls) -> Any:
                calls[0] += 1
                return step(x)

            run = gt.compile(counted) if compiled else counted
            losses = [run(x).item() for _ in range(12)]
            found[compiled] = losses, [p.numpy() for p in parameters]
            if compiled:
                assert (calls[0], run.replays, run.why, run.again) == (3, 9, {}, {})
    assert found[True][0] == found[False][0]
    for a, b in zip(found[True][1], found[False][1]):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_step_leaves_values_that_others_hold_alone() -> None:
    found = {}
    for compiled in (True, False):
        with stream(True):
            step, x, parameters = step_function()
            run = gt.compile(step) if compiled else step
            for _ in range(6):
                run(x)
            held = parameters[0].clone()
            before = held.numpy()
            for _ in range(6):
                run(x)
            np.testing.assert_array_equal(held.numpy(), before)
            found[compiled] = [p.numpy() for p in parameters]
    for a, b in zip(found[True], found[False]):
        np.testing.assert_array_equal(a, b)


def test_a_compiled_function_is_captured_anew_for_other_shapes_or_gives_the_reason() -> None:
    with stream(True):
        f = gt.compile(lambda x: ((x * 2.0 + 1.0).relu() - 0.5).exp().sum())
        for n in (3, 5):
            want = np.exp(np.maximum(np.full(n, 3.0, np.float32), 0) - 0.5).sum()
            for _ in range(5):
                np.testing.assert_allclose(f(gt.ones(n)).item(), want, rtol=1e-6)
        assert f.captures == 2 and f.replays == 4
        reads = gt.compile(lambda x: x * (x.sum().item() + 1.0) * 2.0 + 1.0 - 3.0)
        for _ in range(4):
            np.testing.assert_allclose(reads(gt.ones(2)).numpy(), np.full(2, 4.0))
        assert list(reads.why.values()) == ["a value is read inside it"] and reads.replays == 0
        count = iter(range(100))
        changes = gt.compile(lambda x: (x * float(next(count)) + 1.0) * 2.0 * 3.0 + 4.0)
        assert [changes(gt.ones(1)).item() for _ in range(5)] == [10.0 + 6.0 * k for k in range(5)]
        assert list(changes.why.values()) == ["a number in it changes from call to call"]


@pytest.mark.parametrize("lead", range(4))
def test_a_loop_of_plain_arithmetic_is_replayed_from_its_first_op_on(lead: int) -> None:
    """Whatever precedes it: the trace begins where the loop does, and values that the loop replaces are freed by a call."""
    with stream(True) as c:
        a, b = gt.full((4,), 0.9), gt.full((4,), 0.1)
        start = gt.full((4,), 1.0)
        for _ in range(lead):
            start = start * 1.5

        def loop() -> np.ndarray:
            x = start
            for _ in range(700):
                x = x * a + b
            return x.numpy()

        values = [loop() for _ in range(4)]
        before = tracer(c).hits, tracer(c).saved
        values.append(loop())
        hits, saved = tracer(c).hits - before[0], tracer(c).saved - before[1]
        assert saved + hits == 1400 and hits <= 12  # every op is part of a call
        calls = {tuple(t.dies_inputs): t.calls for traces in tracer(c).traces.values() for t in traces if t.length >= 128}
        assert calls[(0,)] > 3 * calls.get((), 0)  # only the first call must leave its input alone
        for value in values[1:]:
            np.testing.assert_array_equal(value, values[0])


def test_a_capture_knows_tensors_of_its_own_session_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session counts its ids from 1, so tensors of two have the same ones. Which of them is found first depends on the
    objects that refer to them."""
    found = compile.living_tensors
    monkeypatch.setattr(
        compile, "living_tensors", lambda: sorted(found(), key=lambda t: t.handle.session is HERE.scope.session)
    )
    with cluster(1, engine="numpy"):
        theirs = [gt.full((3,), 5.0) for _ in range(8)]
    with cluster(1, engine="numpy"):
        ours = [gt.full((3,), 2.0) for _ in range(8)]

        @gt.compile
        def step(x: gt.Tensor) -> gt.Tensor:
            for t in ours:
                x = x * t - 1.0
            return x.sum()

        assert [step(gt.ones(3)).item() for _ in range(5)] == [3.0] * 5 and step.replays == 2 and len(theirs) == 8
        [[capture]] = step.uses.values()
        read = [source() for source in capture.sources if callable(source)]  # others are arguments
        assert {id(t) for t in read} == {id(t) for t in ours}
