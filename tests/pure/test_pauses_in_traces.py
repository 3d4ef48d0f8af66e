"""When the user's threads pause in the middle of a trace: which pauses end it, and which do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.early import HELD
from gt.client.replies import Reply
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.transport.messages import Batch, Mail, Value
from gt.transport.receiving import LOOK, PATIENCE


class AnsweringLink:
    """Keeps the sent messages, counts the timer's settings, and answers each read with zeros."""

    shares = True

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.wakes = 0
        self.session: Session

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def wake(self) -> None:
        self.wakes += 1

    def wait(self, reply: Reply, timeout: float | None) -> None:
        ticket, _, spec = self.sent[-1].gets[0]
        zeros = np.zeros(4, "f4")
        self.session.handle(Mail("w0", Value(ticket, spec, (0,), (4,), 1), (zeros.tobytes(),)))

    def sealed(self, serial: int) -> bool:
        return False

    def executed(self, serial: int) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def link() -> Iterator[AnsweringLink]:
    made = AnsweringLink()
    made.session = Session(made, "c")
    before, HERE.scope = HERE.scope, Scope(made.session)
    yield made
    HERE.scope = before
    made.session.close()


def begin_a_step(link: AnsweringLink, read: bool) -> Any:
    """A loop of 15 equal steps, with a read in each if `read`, and the first half of one more."""
    a, x, session = gt.full((4,), 0.5), gt.ones(4), link.session
    for _ in range(15):
        for _ in range(20):
            x = x * a + a
        session.mark()
        if read:
            x.numpy()
    if not read:
        session.full(1)
    link.sent.clear()
    for _ in range(10):
        x = x * a + a
    session.full(1)
    assert session.tracer is not None and session.tracer.hits > 5 and session.tracer.pieces
    link.sent = [m for m in link.sent if isinstance(m, Batch)]
    return x


def looks(session: Session, seconds: float) -> None:
    session.paused()  # counts the instructions issued since the last look
    for _ in range(int(seconds / LOOK)):
        session.paused()


def test_a_pause_ends_a_trace_when_the_workers_are_idle(link: AnsweringLink) -> None:
    x = begin_a_step(link, read=False)
    sent = len(link.sent)
    looks(link.session, (PATIENCE - 1) * LOOK)
    assert len(link.sent) == sent and link.session.tracer.pieces
    link.session.paused()
    assert len(link.sent) == sent + 1 and not link.session.tracer.pieces and x.shape == (4,)


def test_a_thread_that_waits_for_room_is_no_pause(link: AnsweringLink) -> None:
    x = begin_a_step(link, read=False)
    session, sent = link.session, len(link.sent)
    session.window.waiting = Reply(1)
    wakes = link.wakes
    looks(session, 0.1)
    assert len(link.sent) == sent and session.tracer.pieces, "the workers have more work than they may"
    assert link.wakes == wakes, "nobody looks again and again meanwhile"
    session.window.waiting = None
    session._await(lambda: False)  # the wait is over
    assert link.wakes == wakes + 1 and x.shape == (4,)


@pytest.mark.parametrize(("in_flight", "held"), [(0.0, 0.0), (0.01, 0.01), (10.0, HELD)])
def test_a_trace_is_held_while_the_workers_have_work(link: AnsweringLink, in_flight: float, held: float) -> None:
    x = begin_a_step(link, read=False)
    session, sent = link.session, len(link.sent)
    session.window.estimated += in_flight
    patience = max(PATIENCE * LOOK, held)
    looks(session, patience - LOOK / 2)
    assert len(link.sent) == sent and session.tracer.pieces
    session.paused()
    assert not session.tracer.pieces and x.shape == (4,)


def test_a_trace_that_was_called_early_is_held_longer(link: AnsweringLink) -> None:
    x = begin_a_step(link, read=True)
    session, sent = link.session, len(link.sent)
    early = session.tracer.early
    assert early.sent is not None
    looks(session, HELD - LOOK / 2)
    assert len(link.sent) == sent and early.sent is not None
    session.paused()
    assert len(link.sent) == sent + 1 and early.counts["wrong"] == 1 and x.shape == (4,)
