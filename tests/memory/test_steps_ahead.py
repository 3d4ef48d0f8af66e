"""Steps of a loop sent before Python has issued them: the same numbers, everything freed, steps that do not come counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client.replies import Reply
from gt.client.steps_ahead import StepsAhead
from gt.testing import Cluster, cluster
from tests.memory.test_early import body
from tests.nn.compare import ENGINES

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


@contextmanager
def sending_ahead(
    workers: int = 1, engine: str = "numpy", on: bool = True, **more: Any
) -> Iterator[tuple[Cluster, StepsAhead]]:
    with cluster(workers, engine, clock=float, **more) as c:  # no step takes too long, none follows a pause
        steps = c.sessions[0].steps
        assert steps is not None
        steps.on = on
        yield c, steps


def both(loop: Callable[[], Any], least: int = 16, **more: Any) -> Any:
    """The return value of a loop, which has to be the same with and without steps sent ahead."""
    found = []
    for on in (False, True):
        with sending_ahead(on=on, **more) as (c, steps):
            found.append(loop())
            counts = steps.counts
            assert counts["right"] >= least if on else not counts["sent"]
            c.settle()
            assert counts["sent"] == counts["right"] + counts["wasted"]
            assert not steps.sent and not steps.ended and not c.sessions[0].replies.ahead and not steps.answers
            assert all(len(space.table) < 16 for worker in c.workers for space in worker.spaces.values())
    assert found[0] == found[1]
    return found[1]


def power(steps: int = 40, whole: bool = True) -> list[float]:
    matrix = gt.tensor(np.arange(36.0, dtype="f4").reshape(6, 6) / 36)
    v, found = gt.ones(6), []
    for _ in range(steps):
        w = matrix @ v
        size = gt.linalg.vector_norm(w)
        v = w / size
        found.append(size.item())
    return [*found, *v.tolist()] if whole else found


@pytest.mark.parametrize("engine, workers", [("numpy", 1), ("pytorch", 1), ("pytorch", 3)])
def test_an_iteration_that_reads_in_every_step_is_sent_ahead_with_the_same_numbers(engine: str, workers: int) -> None:
    both(power, least=24, engine=engine, workers=workers)


def test_a_sharded_iteration_is_sent_ahead_with_the_same_numbers() -> None:
    def loop() -> list[float]:
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
        with gt.signal.context("rows"):
            x = gt.ones(8, 4)
        found = []
        for _ in range(40):
            x = x * 0.9 + 0.05
            found.append(x.sum().item())
        return found

    both(loop, workers=2)


def test_a_step_that_was_sent_ahead_sends_nothing() -> None:
    with sending_ahead() as (c, steps):
        link = c.sessions[0].link
        sent, send = [], link.send
        link.send = lambda message: (sent.append(message), send(message))  # type: ignore[method-assign, assignment]
        power(200)
        assert steps.counts["right"] > 180 and len(sent) < 60  # of 16 steps each, once they are known


def test_a_step_that_was_sent_ahead_makes_no_request() -> None:
    with sending_ahead() as (c, steps):
        replies, made = c.sessions[0].replies, []
        new = replies.new
        replies.new = lambda: (made.append(1), new())[1]  # type: ignore[method-assign]
        power(200, whole=False)
        assert len(made) + steps.counts["right"] == 200 and steps.counts["right"] > 180


def test_a_dispatcher_that_is_lost_while_steps_are_ahead_is_an_error() -> None:
    with sending_ahead() as (c, steps):
        session = c.sessions[0]
        matrix, v = gt.tensor(np.eye(6, dtype="f4")), gt.ones(6)

        def step(v: gt.Tensor) -> gt.Tensor:
            w = matrix @ v
            gt.linalg.vector_norm(w).item()
            return w

        for _ in range(40):
            v = step(v)
        unanswered = Reply(1)
        unanswered.wanted = steps.sent[0][1][0].wanted
        steps.sent[0] = (steps.sent[0][0], [unanswered])
        session.replies.ahead[1] = unanswered
        session.lose("the dispatcher went away")
        with pytest.raises(gt.errors.SessionLost, match="went away"):
            step(v)


def test_a_loop_that_stops_frees_the_steps_that_do_not_come() -> None:
    with sending_ahead() as (c, steps):
        for _ in range(3):
            power(25)
        assert 0 < steps.counts["wasted"] < 120
        c.settle()
        assert not c.workers[0].spaces["c0"].table


def test_a_pause_frees_the_steps_that_do_not_come() -> None:
    with sending_ahead() as (c, steps):
        power(25, whole=False)
        assert steps.sent and c.sessions[0].buffered()
        for _ in range(5):
            c.sessions[0].paused()
        c.hub.deliver()
        assert not steps.sent and not c.sessions[0].buffered()
        assert not c.workers[0].spaces["c0"].table


def test_two_values_passed_on_one_over_two_steps() -> None:
    def fibonacci() -> list[float]:
        before, now, found = gt.ones(1), gt.ones(1), []
        for _ in range(40):
            before, now = now, before + now
            found.append(now.item())
        return found

    assert both(fibonacci)[:6] == [2, 3, 5, 8, 13, 21]


def test_random_draws_go_on_counting() -> None:
    def walk() -> list[float]:
        gt.manual_seed(5)
        x, found = gt.zeros(8), []
        for _ in range(40):
            x = x + gt.randn(8)
            found.append(x.sum().item())
        return found

    both(walk)


def test_several_reads_in_a_step() -> None:
    def loop() -> list[float]:
        x, found = gt.ones(4), []
        for _ in range(40):
            x = x * 0.99 + 0.1
            low, high = x.min(), x.max()
            found += [low.item(), high.item()]
        return found

    both(loop)


def test_optimizer_steps_on_the_same_data() -> None:
    def train() -> list[float]:
        gt.manual_seed(1)
        w = gt.nn.Parameter(gt.ones(3))
        x, optimizer, found = gt.tensor(np.arange(12.0, dtype="f4").reshape(4, 3)), gt.optim.Adam([w], lr=0.1), []
        for _ in range(40):
            loss = ((x @ w - 1) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return [*found, *w.tolist()]

    both(train)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_loop_with_fresh_data_and_a_question_that_never_changes_are_not_sent_ahead(fresh: bool) -> None:
    with sending_ahead() as (_, steps):
        x = gt.ones(4)
        for i in range(40):
            y = x + gt.tensor(np.full(4, i, "f4")) if fresh else x + 1
            assert y.sum().item() == (4 + 4 * i if fresh else 8)
        assert not steps.counts["sent"]


def test_steps_that_take_long_are_not_sent_ahead() -> None:
    with sending_ahead() as (_, steps):
        now = iter(range(10**6))
        steps.clock = lambda: 0.002 * next(now)
        power()
        assert not steps.counts["sent"]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_comes_at_the_read_of_its_step(engine: str) -> None:
    def loop() -> tuple[list[float], str]:
        a, found = gt.eye(2) * 3.5, []
        with pytest.raises(gt.errors.GTError) as error:
            for _ in range(60):
                a = a - gt.eye(2) * 0.125
                found.append(gt.linalg.cholesky(a).sum().item())
        return found, str(error.value)[:40]

    assert len(both(loop, engine=engine)[0]) == 27


def test_a_quota_that_steps_ahead_would_exceed_is_no_error() -> None:
    def loop() -> list[float]:
        x, found = gt.ones(2000), []
        for _ in range(40):
            x = x * 0.5 + 1
            found.append(x.sum().item())
        return found

    with sending_ahead(memory=80_000) as (_, steps):
        found = loop()
        assert steps.counts["sent"] > 0 and steps.stats()["steps_ahead_failed"] > 0
    with sending_ahead(on=False, memory=80_000):
        assert loop() == found


def test_a_worker_that_leaves_ends_the_loop() -> None:
    with sending_ahead(2) as (c, steps):
        power(25, whole=False)
        assert steps.sent
        c.drain(1)
        assert power(10)
        assert steps.counts["right"]


STEP = st.lists(st.sampled_from(["add", "mul", "tanh", "draw", "fresh", "keep", "drop", "old"]), min_size=1, max_size=4)


@given(
    st.lists(STEP, min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=5),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_loops_that_change_and_branch_on_a_read_value_give_the_same_numbers(
    bodies: list[list[str]], plan: list[tuple[int, int]], branches: bool
) -> None:
    def run(on: bool) -> list[Any]:
        with sending_ahead(on=on) as (c, steps):
            gt.manual_seed(1)
            x = gt.ones(3)
            state = {"x": x, "w": gt.ones(3) * 0.25, "kept": [], "old": x, "random": np.random.default_rng(0)}
            found, read = [], 0.5
            for times, choice in plan:
                for _ in range(times):
                    which = choice + (read > 0.6) if branches else choice
                    body(bodies[which % len(bodies)], state, 1.5)
                    read = abs(float(state["x"].sum().item())) % 1.0
                    found.append(read)
                    if choice == 3:
                        found.append(state["x"].max().item())
            c.settle()
            assert steps.counts["sent"] == steps.counts["right"] + steps.counts["wasted"]
            return [*found, state["x"].tolist(), [k.tolist() for k in state["kept"]]]

    assert run(True) == run(False)
