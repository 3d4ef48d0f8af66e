"""A session's messages from the dispatcher and the workers, on the thread that receives. Small values of lanes go to their
replies directly."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import errors
from gt.client.reports import ClientReports, take
from gt.client.uploads import send_pieces
from gt.client.user_lines import line_of
from gt.ops.table import spec_in
from gt.spec import Spec
from gt.transport.events import Listen, Watched
from gt.transport.messages import Ack, Answer, Bye, Failed, Mail, Note, Peers, SmallValues, Upload, Value


def handle(session: Any, mail: Mail) -> None:
    match mail.message:
        case Value() as value:
            _value(session, value, mail)
        case SmallValues() as values:
            session.replies.take_small(values)
        case Failed(ticket, error, text, tensor):
            session.replies.settle(ticket, error=_error(session, error, text, tensor))
        case Ack(serial, seconds):
            _executed(session, serial, seconds)
        case Answer(ticket, value):
            session.replies.settle(ticket, value)
        case Peers(workers, lost):
            session.workers = workers
            if session.asks is not None:
                session.asks.take_back(session)
            if lost:
                _ask_again(session)
        case Bye():  # of a worker, which receives no Starts any more, perhaps not the last one
            if session.asks is not None:
                session.asks.deferred.fail()
        case Listen(level):
            session.reports = ClientReports(level, session.link.clock, session) if level else None
        case Watched() as watched:
            take(session, watched)
        case Note(text, tensor):
            origin = session.asked_for(tensor) if tensor > 0 else None
            session.notes.append(f"{text}\n  asked for at {line_of(origin)}" if origin else text)
        case Upload() as upload:
            send_pieces(session, upload)


def _ask_again(session: Any) -> None:
    """A worker was lost, perhaps with unanswered reads: repeat all reads under new tickets, so that the dispatcher reports the
    lost tensors and late pieces of the others are not counted twice."""
    with session.lock:
        session.ahead.forget(session)
        if session.asks is not None:
            session.asks.forget()
        gets = session.replies.renew()
    if gets:
        session.flush(tuple(gets), wait=False)


def _executed(session: Any, serial: int, seconds: float) -> None:
    waiting = session.window.acknowledged(serial, seconds)
    session.link.executed(serial)
    if waiting is not None:
        session.replies.pop(waiting.ticket, None)
        waiting.settle()


def _value(session: Any, value: Value, mail: Mail) -> None:
    data: Any = np.frombuffer(mail.frames[0], np.uint8) if mail.frames else value.data
    if value.place is not None:
        spec = spec_in(value.spec)
        assert isinstance(spec, Spec)
        data = session.link.view(value.place, spec.nbytes, mail.peer)
    session.replies.take(value, data)


def _error(session: Any, error: str, text: str, tensor: int) -> BaseException:
    origin = session.asked_for(tensor) if tensor > 0 else None
    asked = f"\n\nasked for at\n  {line_of(origin)}" if origin else ""
    found: BaseException = getattr(errors, error, errors.RemoteError)(text + asked)
    return found
