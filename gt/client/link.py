"""How a session reaches the others, and how its readers wait."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gt import environment
from gt.client.replies import Reply
from gt.errors import GTError
from gt.transport.debug_output import show


class Link(Protocol):
    """How a session reaches the others."""

    def clock(self) -> float:
        """Seconds since 1970."""

    @property
    def shares(self) -> bool:
        """Whether every worker can see this process's memory files."""

    def send(self, message: Any) -> None: ...
    def tell(self, message: Any) -> None:
        """Send a message that is no batch."""

    def seen(self, number: int) -> None:
        """Say that a message to an observer was taken in; from the thread that receives."""

    def send_to(self, worker: int, message: Any, frames: tuple = ()) -> None: ...
    def wake(self) -> None:
        """Have `session.paused` called soon, from elsewhere, when this thread pauses."""

    def wait(self, reply: Reply, timeout: float | None) -> None: ...
    def put(self, data: np.ndarray) -> tuple[int, int, int]:
        """Copy the bytes to where every worker can see them."""

    def outstanding(self) -> int:
        """Bytes placed that are not yet known to be read."""

    def sealed(self, serial: int) -> bool:
        """A batch is sent, which reads the bytes put since the last one. Whether the link needs to know when it is executed."""

    def executed(self, serial: int) -> None:
        """All batches up to this one are done."""

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        """Bytes that a worker lends."""

    def close(self) -> None: ...


NOTICE = 5.0  # seconds after which the user is told why a read waits
START = "start one with `gt-worker`, with the host and port of the server"


def await_answer(session: Any, reply: Reply, what: str, timeout: float | None = None) -> None:
    """Wait for an answer, at most `timeout` seconds. Where there is no worker, that is said once, and after GT_WAIT seconds it
    is an error."""
    waited = 0.0 if session.workers else _await_worker(session, reply, what, timeout)
    if not reply.done and (timeout is None or waited < timeout):
        session.link.wait(reply, None if timeout is None else timeout - waited)


def _await_worker(session: Any, reply: Reply, what: str, timeout: float | None) -> float:
    """Wait until there is an answer or a worker; returns for how many seconds."""
    limit, waited = environment.WAIT.value(), 0.0
    ends = [end for end in (session.notice, limit, timeout) if end is not None]
    while not reply.done and not session.workers and (timeout is None or waited < timeout):
        step = min([end - waited for end in ends if end > waited], default=session.notice)
        session.link.wait(reply, step)
        waited += step
        if reply.done or session.workers:
            break
        if limit is not None and waited >= limit:
            raise GTError(f"{what} waited {limit:g} s (GT_WAIT) for a worker, and none has joined the dispatcher: {START}")
        if waited == session.notice:
            show(f"gt: {what} waits for a worker, and none has joined the dispatcher yet: {START}")
    return waited
