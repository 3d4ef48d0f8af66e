"""Questions that wait at their worker until they are asked (docs/design/deferred.md): which ones do, by which messages they are
cancelled, and that nothing is lost or left over. Random programs with them are in test_questions_ahead.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gt
from gt.client import questions_ahead
from gt.client.deferred import SURE
from gt.client.session import Session
from gt.dispatcher.stream import Stream
from gt.errors import RemoteError
from gt.testing import Cluster, cluster
from gt.transport.in_process import MemoryLink
from gt.transport.messages import Batch, Mail, Peers, Run, Start
from gt.worker.deferred_runs import DeferredRuns

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


@pytest.fixture(autouse=True)
def of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions_ahead, "LEAST", 1)
    monkeypatch.setattr(questions_ahead, "cpu_count", lambda: 2)


class Loop:
    """A loop that loads an array, and reads a number made of it and of `w`."""

    def __init__(self, c: Cluster) -> None:
        self.c, self.session, self.rng = c, c.sessions[0], np.random.default_rng(0)
        self.w = gt.full((4,), 0.5)
        assert self.session.tracer is not None and self.session.asks is not None
        self.asks, self.counts = self.session.asks, self.session.tracer.early.counts
        self.session.tracer.early.clock = lambda: 0.0  # no pause, however slow the machine is
        self.session.tracer.early.on = True

    def array(self) -> np.ndarray:
        return self.rng.standard_normal(4).astype("f4")

    def question(self, x: np.ndarray, end: str = "sum") -> gt.Tensor:
        y: gt.Tensor = getattr((gt.tensor(x) * self.w).tanh(), end)()
        return y

    def ask(self, end: str = "sum") -> None:
        x = self.array()
        expected = getattr(np.tanh(x * 0.5), end)()
        assert self.question(x, end).item() == pytest.approx(float(expected), abs=1e-5)

    def until_one_waits(self) -> None:
        for _ in range(16 * SURE):
            if not self.waits():
                self.ask()
        assert self.waits()

    def waits(self) -> bool:
        return self.asks.deferred.waiting is not None

    def nothing_is_left(self) -> None:
        self.c.settle()
        assert not self.waits() and not self.session.replies and not self.session.replies.ahead
        (values,) = self.c.workers[0].spaces.values()
        assert len(values.table) == 1  # `w`


@contextmanager
def loop() -> Iterator[Loop]:
    with cluster(1, "numpy") as c:
        made = Loop(c)
        yield made
        made.nothing_is_left()


def sends(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages to the dispatcher and to the worker from now on."""
    sent: list[Any] = []
    send, start = session.link.send, session.link.start_run
    monkeypatch.setattr(session.link, "send", lambda message: (sent.append(message), send(message))[1])
    monkeypatch.setattr(session.link, "start_run", lambda message: (sent.append(message), start(message))[1])
    return sent


def test_a_question_is_started_by_its_load_and_the_next_one_is_sent_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop() as asked:
        asked.until_one_waits()
        sent = sends(asked.session, monkeypatch)
        for _ in range(10):
            before = asked.session.serial
            del sent[:]
            y = asked.question(asked.array())
            assert [type(message) for message in sent] == [Start] and sent[0].serial == before
            y.item()
            assert [type(message) for message in sent] == [Start, Batch] and sent[1].deferred == 1
        del y
        assert asked.counts["deferred"] >= 10 and not asked.counts["deferred_wasted"]


def test_a_question_is_deferred_once_it_has_come_often_enough_and_less_often_after_each_waste() -> None:
    with loop() as asked:
        rounds: list[int] = []
        for wasted in range(4):
            assert asked.counts["deferred_wasted"] == wasted
            before = asked.counts["sent"]
            asked.until_one_waits()
            rounds.append(asked.counts["sent"] - before)
            assert asked.w.sum().item() == 2.0
        assert rounds == [SURE, 2 * SURE, 4 * SURE, 8 * SURE]


def test_other_instructions_cancel_the_question_and_frees_of_others_do_not() -> None:
    with loop() as asked:
        other = [gt.full((2,), 1.0) for _ in range(2)]
        asked.until_one_waits()
        del other[0]
        asked.session._flush((), False, False)
        assert asked.waits()
        asked.ask()
        assert not asked.counts["deferred_wasted"]
        assert other[0].sum().item() == 2.0
        assert not asked.waits() and asked.counts["deferred_wasted"] == 1
        asked.until_one_waits()
        del other[0]


def test_an_operand_that_is_replaced_cancels_it() -> None:
    with loop() as asked:
        asked.until_one_waits()
        asked.w = gt.full((4,), 0.5)
        for _ in range(20):
            asked.ask()
        assert asked.counts["deferred_wasted"] == 1


def test_a_question_that_goes_on_otherwise_is_computed_as_it_was_issued() -> None:
    with loop() as asked:
        asked.until_one_waits()
        asked.ask("max")
        assert asked.counts["wrong"] == 1
        asked.ask()


def test_another_length_of_the_load_is_another_question() -> None:
    with loop() as asked:
        asked.until_one_waits()
        x = np.ones((2, 4), "f4")
        assert asked.question(x).item() == pytest.approx(8 * np.tanh(0.5), rel=1e-5)


def test_a_question_whose_start_cannot_be_sent_is_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop() as asked:
        asked.until_one_waits()
        monkeypatch.setattr(asked.session.link, "start_run", lambda message: False)
        asked.ask()
        assert asked.counts["deferred_wasted"] == 1


@pytest.mark.parametrize("taken", [True, False])
def test_a_start_with_which_the_lane_ends_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, taken: bool) -> None:
    """The receiving thread learns of the end before the thread that sent the Start goes on."""
    with loop() as asked:
        asked.until_one_waits()
        monkeypatch.setattr(asked.session.link, "start_run", lambda message: (asked.asks.deferred.fail(), taken)[1])
        asked.ask()
        monkeypatch.undo()
        for _ in range(3):
            asked.ask()
        asked.asks.take_back(asked.session)


def test_without_a_worker_that_can_be_told_to_start_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryLink, "starts", False)
    with loop() as asked:
        for _ in range(30):
            asked.ask()
        assert asked.counts["right"] > 15 and not asked.counts["deferred"]


def test_a_question_that_the_dispatcher_refuses_to_defer_is_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop() as asked:
        asked.until_one_waits()
        before = asked.counts["deferred"]
        monkeypatch.setattr(Stream, "_can_defer", lambda *_: False)
        for _ in range(30):
            asked.ask()
        assert asked.counts["deferred"] <= before + 1 and asked.counts["deferred_wasted"]


def test_a_start_that_crosses_the_refusal_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with loop() as asked:
        asked.until_one_waits()
        monkeypatch.setattr(Stream, "_can_defer", lambda *_: False)
        held: list[Any] = []
        post = asked.c.hub.post
        monkeypatch.setattr(asked.c.hub, "post", lambda *mail: held.append(mail) if mail[0] == "dispatcher" else post(*mail))
        asked.question(asked.array()).item()  # the next one's batch is refused
        y = asked.question(x := asked.array())  # which the client does not know
        assert asked.session.replies.ahead
        monkeypatch.undo()
        for mail in held:
            post(*mail)
        assert y.item() == pytest.approx(float(np.tanh(x * 0.5).sum()), abs=1e-5)
        del y


def test_a_start_that_crosses_a_message_of_the_dispatcher_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a tensor is moved: the worker has cancelled the question."""
    with loop() as asked:
        asked.until_one_waits()
        client = asked.session.link.name  # type: ignore[attr-defined]
        asked.c.hub.parties["w0"](Mail("dispatcher", Run(client, 0, (), [])))
        for _ in range(20):
            asked.ask()
        assert asked.counts["deferred"] > 5


def test_a_failure_is_the_one_of_its_line() -> None:
    with cluster(1, "numpy") as c:
        asked = Loop(c)
        table = gt.tensor(np.arange(5, dtype="f4"))
        for i in range(30):
            assert (table[gt.tensor(np.array([i % 5]))] * 2).sum().item() == 2 * (i % 5)
        assert asked.waits()
        before = asked.counts["deferred"]
        picked = table[gt.tensor(np.array([9]))]  # the line that fails
        with pytest.raises(RemoteError, match="the line that fails"):
            (picked * 2).sum().item()
        assert asked.counts["deferred"] == before + 1
        for i in range(10):
            assert (table[gt.tensor(np.array([i % 5]))] * 2).sum().item() == 2 * (i % 5)
        del table, picked
        asked.nothing_is_left()


def test_it_is_taken_back_before_everything_is_executed_and_when_workers_change() -> None:
    with loop() as asked:
        asked.until_one_waits()
        asked.session.ask("stats")
        assert not asked.waits()
        while not asked.waits():
            asked.ask()
        asked.session.handle(Mail("dispatcher", Peers(asked.session.workers, "")))
        assert not asked.waits()
        for _ in range(3):
            asked.ask()


def test_a_client_without_room_in_its_window_does_not_wait_for_a_question_of_its_own() -> None:
    with loop() as asked:
        asked.until_one_waits()
        asked.session.make_room()
        assert not asked.waits()


def test_counts_of_both_sides_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[DeferredRuns] = []
    begin = DeferredRuns.__init__

    def noted(self: DeferredRuns, spaces: Any) -> None:
        begin(self, spaces)
        made.append(self)

    monkeypatch.setattr(DeferredRuns, "__init__", noted)
    with loop() as asked:
        for _ in range(3):
            asked.until_one_waits()
            asked.ask()
            asked.c.settle()
        found = made[0].stats()
        assert found["deferred_runs"] == asked.counts["deferred"] > 0
        assert found["deferred_cancelled"] == asked.counts["deferred_wasted"] == 3
        assert not made[0].waiting and not made[0].early
