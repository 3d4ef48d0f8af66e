"""Loads: arrays whose bytes are sent outside the stream."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.tracer import MARK
from gt.client.window import wait_for_bytes
from gt.program.code import encoded

LARGE = 1 << 20  # bytes of a load from which it is sent at once


def load(session: Any, array: np.ndarray, number: int) -> int:
    """Load an array, and return its id; `number` is that of the load's kind."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    id, kept = session.next_id(), session.local.keeps(session, data)
    shares = kept or session.link.shares  # which waits for the first worker: not under the lock
    if not kept:
        wait_for_bytes(session, data.nbytes)
    began = session.reports.clock() if session.reports is not None else 0.0
    with session.lock:  # no batch may be sent between placing the bytes and issuing their load
        if kept:
            session.local.keep(id, data)
            place = (0, 0, 0)  # nowhere yet
        elif shares:
            place = session.link.put(data)
        else:
            session.uploads[id] = data.tobytes()
            place = (-1, 0, 0)  # the dispatcher asks for the bytes
        session.code.extend(((MARK,), encoded(number, (id,), place), (MARK,)))  # a trace cannot repeat a place in memory
        if session.reports is not None:
            session.reports.loaded(began, data)
        if not kept and session.asks is not None and session.asks.loaded(session, id, data):
            return id
    if len(session.code) >= session.limit or data.nbytes > LARGE:
        session.due()
    elif len(session.code) >= session.lengths.step:  # a step begins: the one before it is complete
        session.full()
    if data.nbytes > LARGE and session.code:  # workers copy its bytes while Python goes on, and give their memory back
        session.full(1)
    return id
