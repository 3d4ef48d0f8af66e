"""When the user's threads pause in the middle of a trace: which pauses end it, and which do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from wire import Wire, gives

import gt
from gt.client.early import HELD
from gt.client.replies import Reply
from gt.client.session import Session
from gt.client.window import wait_for_room
from gt.transport.messages import Batch
from gt.transport.receiving import LOOK, PATIENCE


def begin_a_step(wire: Wire, read: bool) -> Any:
    """A loop of 15 equal steps, with a read in each if `read`, and the first half of one more."""
    a, x, session = gt.full((4,), 0.5), gt.ones(4), wire.session
    gives(wire, np.zeros(4, "f4"))
    assert session.steps is not None
    session.steps.on = False  # (whole steps are not sent ahead of Python)
    for _ in range(15):
        for _ in range(20):
            x = x * a + a
        session.mark()
        if read:
            x.numpy()
    if not read:
        session.full(1)
    wire.sent.clear()
    for _ in range(10):
        x = x * a + a
    session.full(1)
    assert session.tracer is not None and session.tracer.hits > 5 and session.tracer.pieces
    wire.sent = [m for m in wire.sent if isinstance(m, Batch)]
    return x


def looks(session: Session, seconds: float) -> None:
    session.paused()  # counts the instructions issued since the last look
    for _ in range(int(seconds / LOOK)):
        session.paused()


def test_a_pause_ends_a_trace_when_the_workers_are_idle(wire: Wire) -> None:
    x = begin_a_step(wire, read=False)
    sent = len(wire.sent)
    looks(wire.session, (PATIENCE - 1) * LOOK)
    assert len(wire.sent) == sent and wire.session.tracer.pieces
    wire.session.paused()
    assert len(wire.sent) == sent + 1 and not wire.session.tracer.pieces and x.shape == (4,)


def test_a_thread_that_waits_for_room_is_no_pause(wire: Wire) -> None:
    x = begin_a_step(wire, read=False)
    session, sent = wire.session, len(wire.sent)
    session.window.waiting = Reply(1)
    wakes = wire.wakes
    looks(session, 0.1)
    assert len(wire.sent) == sent and session.tracer.pieces, "the workers have more work than they may"
    assert wire.wakes == wakes, "nobody looks again and again meanwhile"
    session.window.waiting = None
    wait_for_room(session, lambda: False)  # the wait is over
    assert wire.wakes == wakes + 1 and x.shape == (4,)


@pytest.mark.parametrize(("in_flight", "held"), [(0.0, 0.0), (0.01, 0.01), (10.0, HELD)])
def test_a_trace_is_held_while_the_workers_have_work(wire: Wire, in_flight: float, held: float) -> None:
    x = begin_a_step(wire, read=False)
    session, sent = wire.session, len(wire.sent)
    session.window.estimated += in_flight
    patience = max(PATIENCE * LOOK, held)
    looks(session, patience - LOOK / 2)
    assert len(wire.sent) == sent and session.tracer.pieces
    session.paused()
    assert not session.tracer.pieces and x.shape == (4,)


def test_a_trace_that_was_called_early_is_held_longer(wire: Wire) -> None:
    x = begin_a_step(wire, read=True)
    session, sent = wire.session, len(wire.sent)
    early = session.tracer.early
    assert early.sent is not None
    looks(session, HELD - LOOK / 2)
    assert len(wire.sent) == sent and early.sent is not None
    session.paused()
    assert len(wire.sent) == sent + 1 and early.counts["wrong"] == 1 and x.shape == (4,)
