"""Which steps are called early, by the seconds that Python takes to issue them and the workers to compute them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from wire import Wire, gives

import gt
from gt.client.replies import Reply
from gt.client.step_times import GROWTH, MOST, StepTimes

OPS = 40  # of a step
PYTHON = OPS * 1e-4  # seconds of the client for one


class Loop:
    """Steps of so many `seconds` of the workers, on a `device`, with a read after each `reads`."""

    def __init__(self, wire: Wire, device: str, seconds: float, reads: int = 1) -> None:
        self.wire, self.seconds, self.reads = wire, seconds, reads
        self.session = wire.session
        self.session.workers = (SimpleNamespace(device=device),)
        self.a, self.x, self.steps = gt.full((4,), 0.5), gt.ones(4), 0
        gives(wire, np.zeros(4, "f4"))
        answer = wire.answer

        def later(reply: Reply) -> None:
            wire.now += self.reads * self.seconds
            answer(reply)

        wire.answer = later

    def run(self, steps: int) -> dict[str, int]:
        """The early calls of these steps, by their outcome."""
        assert self.session.tracer is not None
        before = self.session.tracer.stats()
        for _ in range(steps):
            for _ in range(OPS // 2):
                self.x = self.x * self.a + self.a
                self.wire.now += PYTHON / OPS * 2
            self.session.mark()
            self.steps += 1
            if self.steps % self.reads == 0:
                self.x.numpy()
        after = self.session.tracer.stats()
        return {n: after[f"early_calls_{n}"] - before[f"early_calls_{n}"] for n in ("sent", "right", "wrong", "no_gain")}


@pytest.mark.parametrize("device, seconds, sent", [
    ("cpu", 0.0, True), ("cpu", 2 * PYTHON, True), ("cpu", 0.9 * MOST * PYTHON, True), ("cpu", 1.1 * MOST * PYTHON, False),
    ("cpu", 100 * PYTHON, False), ("cuda:0", 100 * PYTHON, True),
])  # fmt: skip
def test_a_step_that_takes_a_cpu_far_longer_than_python_is_not_called_early(
    wire: Wire, device: str, seconds: float, sent: bool
) -> None:
    found = Loop(wire, device, seconds).run(30)
    assert not found["wrong"] and found["sent"] == found["right"]
    assert found["sent"] > 10 and not found["no_gain"] if sent else found["no_gain"] > 10 and not found["sent"]


def test_several_steps_between_two_reads_count_each(wire: Wire) -> None:
    assert Loop(wire, "cpu", 0.8 * MOST * PYTHON, reads=3).run(60)["sent"] > 10


def test_a_cpu_that_becomes_faster_or_slower_is_noticed(wire: Wire) -> None:
    loop = Loop(wire, "cpu", 100 * PYTHON)
    assert loop.run(20)["no_gain"]
    loop.seconds = PYTHON
    assert loop.run(20)["sent"] > 17
    loop.seconds = 30 * PYTHON
    loop.run(120)  # least values grow slowly
    assert loop.run(10) == {"sent": 0, "right": 0, "wrong": 0, "no_gain": 10}


def test_one_slow_step_changes_nothing(wire: Wire) -> None:
    loop = Loop(wire, "cpu", 5 * PYTHON)
    assert loop.run(20)["sent"]
    loop.seconds = 1000.0
    loop.run(1)
    loop.seconds = 5 * PYTHON
    assert loop.run(10)["sent"] == 10


def test_times_are_the_least_of_late_and_those_of_a_call_that_was_broken_off_are_forgotten(wire: Wire) -> None:
    times = StepTimes()
    assert times.pay()
    for issue, span, calls in ((2.0, 8.0, 2), (1.0, 5.0, 2), (3.0, 9.0, 2)):
        times.begin(100.0)
        times.complete(100.0 + issue)
        times.answered(100.0 + span, calls)
    assert times.issue == GROWTH and times.device == 2.0 * GROWTH
    loop = Loop(wire, "cpu", 5 * PYTHON)
    loop.run(20)
    early = loop.session.tracer.early  # type: ignore[union-attr]
    known = [(g.times.issue, g.times.device) for g in early.guesses.values() if g is not None]
    y = loop.x * loop.a + loop.a
    assert early.timed is not None and early.sent is not None
    wire.now += 1e-6
    (y - 1).numpy()
    assert early.timed is None and early.sent is None
    assert known == [(g.times.issue, g.times.device) for g in early.guesses.values() if g is not None]
