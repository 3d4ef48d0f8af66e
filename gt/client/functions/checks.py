"""Conditions on values that only the workers have: a deviation is positive, weights are not negative. A check does not wait:
the workers compute its condition, and the client reads it with the next value that the script reads. If it is false, that read
raises with the line of the check. Small tensors that were loaded from this client are checked at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.registry import FUNCTIONS
from gt.client.grad_mode import no_grad
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.host_copies import applied, chain_of_ops
from gt.client.replies import Reply, as_numpy
from gt.client.session import Session
from gt.client.user_lines import line_of, origin
from gt.client.views import raw_handle, stale
from gt.errors import ArgumentError
from gt.ops.table import spec_out

Line = tuple[Any, int, str]  # a code object, an offset in it, and the message


class Checks:
    """The unread conditions of one session, by line. Conditions of one line are combined, so that a loop without reads keeps
    one boolean. `added` and `answered` are counts."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pending: dict[Line, Tensor] = {}
        self.added = self.answered = 0

    def add(self, line: Line, condition: Tensor) -> None:
        before = self.pending.get(line)
        self.pending[line] = condition if before is None else before & condition
        self.added += 1

    def ask(self) -> Question | None:
        """Begin to read all conditions; None if there are none, or this thread uses another session."""
        if not self.pending or here().session is not self.session:
            return None
        asked, self.pending = self.pending, {}
        conditions = list(asked.values())
        with no_grad():
            joined = conditions[0] if len(conditions) == 1 else FUNCTIONS["stack"](conditions)
        return Question(self, asked, joined.handle)


class Question:
    """A read of conditions in flight."""

    def __init__(self, checks: Checks, asked: dict[Line, Tensor], value: Handle) -> None:
        self.checks, self.asked, self.value = checks, asked, value
        self.reply: Reply = checks.session.reply()
        self.reply.wanted = (value.id, spec_out(value.spec))
        self.gets, self.replies = ((self.reply.ticket, *self.reply.wanted),), [self.reply]

    def close(self) -> None:
        """The read is complete, or was interrupted, which leaves the conditions for the next read."""
        self.checks.session.replies.pop(self.reply.ticket, None)
        if not self.reply.done:
            self.checks.pending = {**self.asked, **self.checks.pending}

    def answered(self) -> None:
        """Raise the first message whose condition is false. A condition that could not be computed is skipped: its tensor
        failed too, and raises the reason when it is read."""
        self.checks.answered += len(self.asked)
        if self.reply.error is not None:
            return
        for (code, at, text), holds in zip(self.asked, as_numpy(self.reply.value, self.value.spec).reshape(-1)):
            if not holds:
                raise ArgumentError(f"{text}\n\nasked for at\n  {line_of((code, at))}")


def require(condition: Any, text: str) -> None:
    """Raise `text` if a condition is false: at once if its value is known here, else at the next read. Captured functions check
    nothing."""
    if not isinstance(condition, Tensor):
        if not np.all(condition):
            raise ArgumentError(text)
        return
    session = here().session
    if session.noted is None:
        if session.checks is None:
            session.checks = Checks(session)
        with no_grad():
            session.checks.add((*origin(1), text), condition.all())


def require_of(t: Tensor, holds: Callable[[Any], Any], text: str) -> None:
    """Raise `text` if a condition, a function of a tensor or an array, is false for a tensor."""
    known = known_value(t)
    with no_grad(), np.errstate(all="ignore"):
        require(holds(t if known is None else known), text)


def known_value(t: Tensor) -> np.ndarray | None:
    """The value of a small tensor that was loaded from this client, or of a view of one; else None."""
    own = raw_handle(t)
    if t.base is not None and own.id == raw_handle(t.base).id and not stale(t):  # a view that has its base's value
        return own.session.loaded.get(own.id)
    chain = chain_of_ops(t)
    if chain is None:
        return None
    value, steps = chain
    array = value.session.loaded.get(value.id)
    return None if array is None or stale(t) else applied(steps, array)
