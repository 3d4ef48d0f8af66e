"""The interface between a session and its transport, and the waiting of readers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gt import environment
from gt.client.replies import Reply
from gt.errors import GTError
from gt.transport.debug_output import show


class Link(Protocol):
    """A session's transport."""

    def clock(self) -> float:
        """Seconds since 1970."""

    @property
    def shares(self) -> bool:
        """Whether every worker can map this process's shared memory."""

    def send(self, message: Any) -> None: ...
    def tell(self, message: Any) -> None:
        """Send a message other than a batch."""

    @property
    def can_start(self) -> bool:
        """Whether there is one worker, which receives Starts from this process and shares memory with it."""

    def start_run(self, message: Any) -> bool:
        """Start a deferred batch. Returns whether the message was sent."""

    def seen(self, number: int) -> None:
        """Acknowledge a message of the event stream; called on the receiving thread."""

    def send_to(self, worker: int, message: Any, frames: tuple = ()) -> None: ...
    def wake(self) -> None:
        """Call `session.paused` soon, on another thread, when this thread pauses."""

    def let_sleep(self) -> None:
        """Call off `wake`: nothing has to be sent soon."""

    def wait(self, reply: Reply, timeout: float | None) -> None:
        """Wait so long for a reply; without a timeout until there is no worker."""

    def put(self, data: np.ndarray) -> tuple[int, int, int]:
        """Copy bytes to shared memory."""

    def outstanding(self) -> int:
        """Bytes in shared memory that workers may not have read yet."""

    def sealed(self, serial: int) -> bool:
        """A batch that reads the bytes put since the last one is sent. Returns whether the link needs its acknowledgement."""

    def executed(self, serial: int) -> None:
        """All batches up to this one are executed."""

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        """The bytes at a worker's place in shared memory."""

    def close(self) -> None: ...


NOTICE = 5.0  # seconds after which the user is told why a read waits
START = "start one with `gt-worker`, with the host and port of the server"


def await_answer(session: Any, reply: Reply, what: str, timeout: float | None = None) -> None:
    """Wait for an answer, at most `timeout` seconds. If there is no worker, the user is told once, and after GT_WAIT seconds it
    is an error."""
    waited = 0.0 if session.workers else _await_worker(session, reply, what, timeout)
    if not reply.done and (timeout is None or waited < timeout):
        session.link.wait(reply, None if timeout is None else timeout - waited)
    while timeout is None and not reply.done:  # the last worker was lost meanwhile
        _await_worker(session, reply, what, None)
        session.link.wait(reply, None)


def _await_worker(session: Any, reply: Reply, what: str, timeout: float | None) -> float:
    """Wait until there is an answer or a worker; returns the seconds waited."""
    limit, waited = environment.WAIT.value(), 0.0
    ends = [end for end in (session.notice, limit, timeout) if end is not None]
    while not reply.done and not session.workers and (timeout is None or waited < timeout):
        step = min([end - waited for end in ends if end > waited], default=session.notice)
        session.link.wait(reply, step)
        waited += step
        if reply.done or session.workers:
            break
        if limit is not None and waited >= limit:
            raise GTError(
                f"{what} waited {limit:g} s (GT_WAIT) for a worker, and none has joined the dispatcher: {session.remedy}"
            )
        if waited == session.notice:
            show(f"gt: {what} waits for a worker, and none has joined the dispatcher yet: {session.remedy}")
    return waited
