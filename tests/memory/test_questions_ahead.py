"""Questions sent with their loads, before Python has issued them, or sent before and started then: the same numbers, all freed,
wrong guesses counted. Tests of deferred ones alone are in test_deferred.py."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.client import questions_ahead
from gt.client.fresh_questions import template
from gt.client.scope import HERE
from gt.client.session import Session
from gt.errors import RemoteError
from gt.testing import Cluster, cluster
from gt.transport.in_process import MemoryLink
from gt.transport.messages import Batch, Mail, Peers
from tests.memory.policies import Policy, array

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


LEAST = questions_ahead.LEAST


@pytest.fixture(autouse=True, params=[False, True], ids=["sent", "deferred"])
def of_any_length(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question that can be predicted is sent with its load, or deferred."""
    monkeypatch.setattr(MemoryLink, "starts", request.param)
    monkeypatch.setattr(questions_ahead, "LEAST", 1)
    monkeypatch.setattr(questions_ahead, "cpu_count", lambda: 2)


def counts(c: Cluster, on: bool = True) -> Any:
    gt.ones(1).item()
    tracer = c.sessions[0].tracer
    assert tracer is not None
    tracer.early.on, tracer.early.clock = on, lambda: 0.0  # no pause, however slow the machine is
    return tracer.early.counts


@pytest.mark.parametrize("engine, workers", [("numpy", 1), ("pytorch", 1), ("numpy", 3)])
def test_an_action_is_asked_for_with_its_observation(engine: str, workers: int) -> None:
    found = {}
    for on in (False, True):
        with cluster(workers, engine) as c, gt.no_grad():
            done, policy, rng = counts(c, on), Policy(), np.random.default_rng(0)
            found[on] = [policy(array(rng, 1, 4))[0].argmax(-1).item() for _ in range(30)]
            assert done["sent"] == done["right"] == done["with_reads"] and not done["wrong"]
            assert (done["sent"] > 15) == on
            c.settle()
            assert not c.sessions[0].replies and not c.sessions[0].replies.ahead
    assert found[True] == found[False]


def noted(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The messages that a session sends from now on."""
    sent: list[Batch] = []
    send = session.link.send

    def note(message: Batch) -> None:
        sent.append(message)
        send(message)

    monkeypatch.setattr(session.link, "send", note)
    return sent


def test_one_message_is_sent_for_a_step_and_it_goes_out_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryLink, "starts", False)
    with cluster(1, "numpy") as c, gt.no_grad():
        done, policy, rng, session = counts(c), Policy(), np.random.default_rng(0), c.sessions[0]
        sent = noted(session, monkeypatch)
        for _ in range(20):
            del sent[:]
            policy(array(rng, 1, 4))[0].argmax(-1).item()
            assert len(sent) == 1 or not done["sent"]
        assert done["right"] > 5
        del sent[:]
        x = gt.tensor(array(rng, 1, 4))
        assert len(sent) == 1 and len(sent[0].gets) == 1
        del x


@pytest.mark.parametrize("on", [False, True])
def test_two_values_that_are_read_are_asked_for_together(on: bool) -> None:
    with cluster(1, "numpy") as c, gt.no_grad():
        done, policy, rng, session = counts(c, on), Policy(), np.random.default_rng(0), c.sessions[0]
        for i in range(40):
            x, before = array(rng, 1, 4), session.serial
            action, value = policy(x)
            shown = action.tolist(), value.item()
            assert i < 30 or session.serial == before + 1
        action, value = policy(x)
        assert shown == (action.tolist(), value.item())
        c.settle()
        assert (done["right"] > 20) == on and not session.replies.ahead


def test_everything_is_freed_in_time() -> None:
    with cluster(1, "numpy") as c, gt.no_grad():
        done, policy, rng = counts(c), Policy(), np.random.default_rng(0)
        kept = []
        for i in range(60):
            policy(array(rng, 1, 4))[0].argmax(-1).item()
            if i % 20 == 19:
                c.sessions[0].ask("stats")
                kept.append(len(next(iter(c.workers[0].spaces.values())).table))
        assert done["right"] > 30 and max(kept) <= min(kept) + 1


def test_a_branch_on_what_was_read_and_a_state_of_the_loop_give_the_same_numbers() -> None:
    """A wrong guess is counted, and a question that often is another one is sent less often."""
    found: dict[bool, list[float]] = {}
    counted: dict[bool, Any] = {}
    for on in (False, True):
        with cluster(1, "numpy") as c:
            counted[on], rng, w, state = counts(c, on), np.random.default_rng(2), gt.full((4,), 0.5), gt.zeros(4)
            found[on] = []
            for _ in range(200):
                x = gt.tensor(array(rng, 4))
                state = (state * 0.9 + x * w).tanh()
                y = state.sum()
                if found[on] and found[on][-1] > 0.8:
                    y = y * 2
                found[on].append(y.item())
    assert found[True] == found[False]
    assert counted[True]["wrong"] > 2 and counted[True]["right"] > 5


def test_an_operand_that_was_freed_or_replaced_is_not_used() -> None:
    found: dict[bool, list[float]] = {}
    for on in (False, True):
        with cluster(1, "numpy") as c:
            done, rng, w = counts(c, on), np.random.default_rng(2), gt.full((4,), 0.5)
            found[on] = []
            for i in range(60):
                if i % 15 == 14:
                    w = w + 1
                    if i % 2:
                        w.sum().item()
                found[on].append((gt.tensor(array(rng, 4)) * w).sum().item())
            assert not on or done["right"] > 20
    assert found[True] == found[False]


@pytest.mark.parametrize("rounds", [8, 30])
def test_a_failure_raises_on_the_line_of_its_op(rounds: int) -> None:
    with cluster(1, "numpy") as c:
        done, rng = counts(c), np.random.default_rng(0)
        there = array(rng, 5, 2)
        table = gt.tensor(there)
        for i in range(rounds):
            at = gt.tensor(np.array([i % 5 if i < rounds - 1 else 9]))
            picked = table[at]  # the line that fails
            if i < rounds - 1:
                assert picked.sum().item() == pytest.approx(float(there[i % 5].sum()), rel=1e-5)
            else:
                with pytest.raises(RemoteError, match="the line that fails|out of|index"):
                    picked.sum().item()
        assert not c.sessions[0].replies and not c.sessions[0].replies.ahead
        assert rounds == 8 or done["right"] > 5


def test_a_zero_of_either_sign_is_not_predicted() -> None:
    assert template((3, 7, 5, 0.0), (3, 6, 5, 0.0), 6, 5) is None
    assert template((3, 7, 5, 2.0), (3, 6, 5, 2.0), 6, 5) == ((False, 3), (True, 1), (False, 5), (False, 2.0))
    assert template((3, 7, 5, 1), (3, 6, 5, True), 6, 5) is None
    assert template((3, 7, 5, 2.5), (3, 6, 5, 2.0), 6, 5) is None


def test_values_of_a_lost_worker_are_reported_and_not_awaited() -> None:
    with cluster(1, "numpy") as c, gt.no_grad():
        done, policy, rng, session = counts(c), Policy(), np.random.default_rng(0), c.sessions[0]
        for _ in range(20):
            policy(array(rng, 1, 4))[0].argmax(-1).item()
        right = done["right"]
        x = gt.tensor(array(rng, 1, 4))
        session.handle(Mail("", Peers(session.workers, "another worker")))  # another worker was lost: reads are sent again
        h = policy.body(x)
        value = policy.value(h).squeeze(-1)
        del x
        action = policy.act(h).argmax(-1)
        del h, value
        assert 0 <= action.item() < 3 and done["right"] + done["wrong"] == right + 1
        assert not session.replies and not session.replies.ahead


def test_another_thread_has_its_own_results() -> None:
    with cluster(1, "numpy") as c:
        done, rng, w = counts(c), np.random.default_rng(0), gt.full((4,), 2.0)
        ended, wrong, scope = threading.Event(), [], HERE.scope
        one_at_a_time, deliver = threading.RLock(), c.hub.deliver  # a hub is of one thread

        def delivered() -> None:
            with one_at_a_time:
                deliver()

        c.hub.deliver = delivered  # type: ignore[method-assign]

        def other() -> None:
            HERE.scope = scope  # the same session
            y = gt.ones(3)
            while not ended.is_set():
                y = y + 1
                if (z := (y * 2 - y).sum() - y.sum()).item() != 0:
                    wrong.append(z)

        def asked(n: int) -> None:
            for _ in range(n):
                x = array(rng, 4)
                assert (gt.tensor(x) * w).sum().item() == pytest.approx(float(2 * x.sum()), abs=1e-5)

        asked(20)
        thread = threading.Thread(target=other)
        thread.start()
        try:
            asked(300)
        finally:
            ended.set()
            thread.join()
        asked(20)
        assert not wrong and done["sent"] == done["right"] + done["wrong"]


def test_short_questions_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions_ahead, "LEAST", LEAST)
    with cluster(1, "numpy") as c:
        done, rng = counts(c), np.random.default_rng(0)
        for _ in range(20):
            (gt.tensor(array(rng, 4)) * 2).sum().item()
        assert not done["sent"]


STEPS = st.lists(st.sampled_from("aaaaaaaaaabcdefgh"), min_size=25, max_size=60)


def played(steps: list[str], engine: str, on: bool) -> tuple[list[Any], int]:
    with cluster(1, engine) as c:
        done, rng, w, found = counts(c, on), np.random.default_rng(5), gt.full((3,), 0.5), []
        last = gt.ones(3)
        for step in steps:
            if step == "h":
                w = w * 1.5
            x = gt.tensor(array(rng, 3))
            y = x * w + last
            for _ in range(6 if step != "b" else 7):
                y = (y * 0.7).tanh()
            if step == "c":
                y = y * gt.tensor(array(rng, 3))
            if step == "d":
                found.append(x.tolist())
            if step == "e":
                continue
            if step == "f":
                last = y
            found.append(y.sum().item())
            if step == "g":
                found.append(y.tolist())
        return found, done["right"]


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_any_program_gives_the_same_numbers(steps: list[str]) -> None:
    assert played(steps, "numpy", True)[0] == played(steps, "numpy", False)[0]


@pytest.mark.default("GT_WORKER_BATCH_SIZE", "GT_AUTO_COMPILE")  # compiled code does not round to the same bits
def test_long_runs_of_the_same_steps_are_guessed_right() -> None:
    steps = list("a" * 20 + "b" + "a" * 20 + "f" + "a" * 20)
    for engine in ("numpy", "pytorch"):
        found, right = played(steps, engine, True)
        assert found == played(steps, engine, False)[0] and right > 15


def pauses(c: Cluster, on: bool = True) -> Any:
    """As `counts`, with a second between any two looks at the clock."""
    done, tracer = counts(c, on), c.sessions[0].tracer
    assert tracer is not None
    tracer.early.clock = count(1).__next__
    return done


@pytest.mark.parametrize("engine, workers", [("numpy", 1), ("pytorch", 1), ("numpy", 3)])
@pytest.mark.parametrize("ops", [1, 2, 7])
def test_a_question_after_pauses_is_sent_with_its_first_op(engine: str, workers: int, ops: int) -> None:
    found = {}
    for on in (False, True):
        with cluster(workers, engine) as c:
            done, w, session = pauses(c, on), gt.full((2, 2), 0.5), c.sessions[0]
            found[on] = []
            for _ in range(40):
                y = w @ w
                for _ in range(ops - 2):
                    y = (y * 0.5).tanh()
                found[on].append((y.sum() if ops > 1 else y[0, 0]).item())
            assert done["sent"] == done["with_reads"] and done["wrong"] <= 1  # when it has become a call of a trace
            assert (done["right"] > 20) == on
            assert not session.replies and not session.replies.ahead
    assert found[True] == found[False]


def test_one_message_goes_out_with_the_first_op_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, "numpy") as c:
        done, w, session = pauses(c), gt.full((2, 2), 0.5), c.sessions[0]
        sent = noted(session, monkeypatch)
        for _ in range(40):
            del sent[:]
            assert (w @ w).sum().item() == 2.0
            assert len(sent) == 1
        assert done["right"] > 20
        del sent[:]
        y = w @ w
        assert len(sent) == 1 and len(sent[0].gets) == 1
        assert y.sum().item() == 2.0 and len(sent) == 1


def test_a_question_without_a_pause_is_sent_at_its_read() -> None:
    with cluster(1, "numpy") as c:
        done, w = pauses(c), gt.full((2, 2), 0.5)
        tracer = c.sessions[0].tracer
        assert tracer is not None
        tracer.early.clock = lambda: 0.0
        for _ in range(40):
            assert (w @ w).sum().item() == 2.0
        assert not done["sent"]


def test_frees_that_are_sent_in_a_pause_do_not_hinder_the_next_question() -> None:
    with cluster(1, "numpy") as c:
        done, w, session = pauses(c), gt.full((2, 2), 0.5), c.sessions[0]
        for _ in range(40):
            assert (w @ w).sum().item() == 2.0
            session.paused()
            session.paused()
        assert done["right"] > 20 and not done["wrong"]
        c.settle()
        assert len(next(iter(c.workers[0].spaces.values())).table) == 1  # `w`


def test_a_question_that_goes_on_otherwise_gives_the_same_numbers() -> None:
    """Another operand is noticed at the first op, another second op at the read, and Python may pause after the first op."""
    with cluster(1, "numpy") as c:
        done, session = pauses(c), c.sessions[0]
        w, v = gt.full((2, 2), 0.5), gt.full((2, 2), 3.0)
        for _ in range(30):
            assert (w @ w).sum().item() == 2.0
        right = done["right"]
        assert (v @ v).sum().item() == 72.0 and done["right"] == right and not done["wrong"]
        for _ in range(10):
            assert (w @ w).sum().item() == 2.0
        assert (w @ w).mean().item() == 0.5 and done["wrong"] == 1
        for _ in range(20):
            assert (w @ w).sum().item() == 2.0
        y, before = w @ w, done["sent"]
        for _ in range(6):
            session.paused()
        assert y.tolist() == [[0.5, 0.5], [0.5, 0.5]]
        del w, y
        w = gt.full((2, 2), 1.0)
        assert (w @ w).sum().item() == 8.0 and done["sent"] == before == done["right"] + done["wrong"]
        assert not session.replies and not session.replies.ahead


PAUSED = st.lists(st.sampled_from("aaaaaaaaaabcdefg"), min_size=25, max_size=60)


def played_paused(steps: list[str], on: bool) -> list[Any]:
    with cluster(1, "numpy") as c:
        pauses(c, on)
        w, found, kept = gt.full((3,), 0.5), list[Any](), list[Any]()
        for step in steps:
            y = w * 0.7
            y = y.tanh() if step != "b" else y.exp()
            if step == "c":
                kept.append(y)
            if step == "d":
                w = w * 1.5
            if step == "e":
                continue
            if step == "f":
                c.sessions[0].paused()
                c.sessions[0].paused()
            found.append(y.sum().item())
            if step == "g":
                found.append(y.tolist())
        return [*found, *[y.tolist() for y in kept]]


@settings(max_examples=25, deadline=None)
@given(PAUSED)
def test_any_program_with_pauses_gives_the_same_numbers(steps: list[str]) -> None:
    assert played_paused(steps, True) == played_paused(steps, False)
