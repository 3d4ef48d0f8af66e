"""Which steps are called early, by the seconds that steps take with early calls and without."""

from __future__ import annotations

from itertools import cycle, islice
from types import SimpleNamespace

import numpy as np
import pytest
from wire import Wire, gives

import gt
from gt.client.early_gain import FASTER, HOLD, LONGEST, MORE, STEPS, Trial
from gt.client.replies import Reply
from gt.transport.messages import Ack, Mail

OPS = 40  # of a step
LEARNING = 20  # steps, more than are needed until a first call can be sent early
SENT, NOT = 0.5, 1.0  # seconds of a step that gains


class Loop:
    """Steps on a `device` that take so many seconds where they are `called_early`, and where they are `not_early`."""

    def __init__(self, wire: Wire, device: str, called_early: float, not_early: float) -> None:
        self.wire, self.called_early, self.not_early = wire, called_early, not_early
        self.session = wire.session
        self.session.workers = (SimpleNamespace(device=device, small=False),)
        self.a, self.x = gt.full((4,), 0.5), gt.ones(4)
        self.messages: list[int] = []  # of each step
        gives(wire, np.zeros(4, "f4"))
        answer = wire.answer

        def later(reply: Reply) -> None:
            wire.now += self.called_early if self.early["sent"] > self.sent else self.not_early
            answer(reply)
            wire.session.handle(Mail("d", Ack(wire.sent[-1].serial, 0.0)))

        wire.answer = later

    @property
    def early(self) -> dict[str, int]:
        assert self.session.tracer is not None
        names = ("sent", "right", "wrong", "no_gain", "trials", "inputs_not_there")
        return {n: self.session.tracer.early.counts[n] for n in names}

    def run(self, steps: int) -> dict[str, int]:
        """The early calls of these steps, by their outcome."""
        before = self.early
        for _ in range(steps):
            self.sent, sent = self.early["sent"], len(self.wire.sent)
            for _ in range(OPS // 2):
                self.x = self.x * self.a + self.a
            self.session.mark()
            self.x.numpy()
            self.messages.append(len(self.wire.sent) - sent)
        return {n: count - before[n] for n, count in self.early.items()}


@pytest.mark.parametrize("device, early, trials", [("cpu", 0.5, 1), ("cpu", 0.9 * FASTER, 1), ("cuda:0", 2.0, 0)])
def test_steps_that_take_less_time_with_early_calls_are_called_early(
    wire: Wire, device: str, early: float, trials: int
) -> None:
    loop = Loop(wire, device, early, 1.0)
    found = loop.run(LEARNING + STEPS)
    assert found["sent"] >= STEPS // 2 and found["trials"] == trials and not found["no_gain"]
    assert loop.run(20) == {"sent": 20, "right": 20, "wrong": 0, "no_gain": 0, "trials": 0, "inputs_not_there": 0}


@pytest.mark.parametrize("early", [1.01 * FASTER, 1.0, 3.0])
def test_steps_on_a_cpu_that_take_no_less_time_with_early_calls_are_not(wire: Wire, early: float) -> None:
    loop = Loop(wire, "cpu", early, 1.0)
    found = loop.run(LEARNING + STEPS)
    assert STEPS // 2 <= found["sent"] == found["right"] < STEPS and found["trials"] == 1
    assert loop.run(20) == {"sent": 0, "right": 0, "wrong": 0, "no_gain": 20, "trials": 0, "inputs_not_there": 0}
    assert set(loop.messages[-20:]) == {1}, "the first instruction of a step is not sent alone"


def test_a_loop_is_tried_again_and_may_change_its_way(wire: Wire) -> None:
    loop = Loop(wire, "cpu", NOT, SENT)
    loop.run(LEARNING + STEPS)
    loop.called_early, loop.not_early = SENT, NOT
    assert loop.run(HOLD + STEPS)["trials"] == 1
    assert loop.run(20)["sent"] == 20
    loop.called_early, loop.not_early = NOT, SENT
    assert loop.run(HOLD + STEPS)["trials"] == 1
    found = loop.run(20)
    assert found["no_gain"] == 20 and not loop.early["wrong"] and not found["inputs_not_there"]


def test_a_trace_that_was_broken_off_is_not_timed(wire: Wire) -> None:
    loop = Loop(wire, "cpu", SENT, NOT)
    loop.run(LEARNING)
    early = loop.session.tracer.early  # type: ignore[union-attr]
    trial = early.guesses[early.before].trial  # type: ignore[union-attr]
    while not trial.sends():
        loop.run(1)
    timed = trial.timed
    assert 0 < timed < STEPS
    y = loop.x * loop.a + loop.a
    assert early.timed is not None and early.sent is not None
    (y - 1).numpy()
    assert early.timed is None and early.sent is None and early.answer is None and trial.timed == timed


def test_no_clock_is_read_between_two_trials(wire: Wire) -> None:
    loop = Loop(wire, "cpu", SENT, NOT)
    loop.run(LEARNING + STEPS)
    loop.session.tracer.early.clock = lambda: pytest.fail("read")  # type: ignore[union-attr]
    assert loop.run(HOLD - 2 * LEARNING)["sent"]


def tried(trial: Trial, called_early: list[float], not_early: list[float]) -> bool:
    """The outcome of one trial of steps that take these seconds in turn."""
    for early, without in islice(zip(cycle(called_early), cycle(not_early)), STEPS):
        assert trial.runs()
        trial.took(early if trial.sends() else without)
    assert not trial.runs() and trial.pays is not None and trial.sends() is trial.pays
    return trial.pays


@pytest.mark.parametrize("kinds", [[1.0, 3.0], [3.0, 1.0], [1.0, 1.0, 3.0, 3.0], [5.0, 1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
def test_steps_of_several_kinds_in_turn_are_compared_with_their_own(kinds: list[float]) -> None:
    assert tried(Trial(), [0.9 * k for k in kinds], kinds)
    assert not tried(Trial(), [1.1 * k for k in kinds], kinds)


def test_slow_steps_among_others_change_nothing() -> None:
    slow = [1.0] * 9 + [100.0] * 3
    assert tried(Trial(), [0.9 * s for s in slow], [1.0] * 12)
    assert not tried(Trial(), [1.0] * 12, slow)


def test_trials_with_one_outcome_become_seldom_and_another_outcome_makes_them_frequent() -> None:
    def until_the_next(trial: Trial) -> int:
        steps = 0
        while not trial.runs():
            trial.passed()
            steps += 1
        return steps

    trial, found = Trial(), []
    for early in (1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5):
        tried(trial, [early], [1.0])
        found.append(until_the_next(trial))
    assert found == [HOLD, MORE * HOLD, MORE**2 * HOLD, LONGEST, LONGEST, HOLD, MORE * HOLD]
