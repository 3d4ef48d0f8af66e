"""A script that watches its own events over its session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from gt.client.reports import subscribe, unsubscribe
from gt.errors import GTError
from gt.transport.events import EVERY, Watched
from gt.watch.doctor import Finding, diagnose
from gt.watch.events import Recording


@contextmanager
def watching(session: Any, observe: Callable[[Watched], None], level: int = EVERY) -> Iterator[None]:
    """Call `observe` with the events of a session's work, on the thread that receives them. At the end of the block all its
    instructions are executed and reported."""
    session.ask("stats")  # earlier instructions are executed before the subscription, so that their events are left out
    subscribe(session, level, observe)
    session.ask("stats")  # its answer comes after every process has the new level
    try:
        yield
    except BaseException:  # however the block ends, its events arrive before the unsubscription
        with suppress(GTError):
            settle(session)
        raise
    else:
        settle(session)
    finally:
        with suppress(GTError):  # the session may have ended
            unsubscribe(session, observe)


def settle(session: Any) -> None:
    """Wait until all instructions are executed and reported. Workers report before they answer, and the dispatcher forwards
    their reports before its next answer."""
    session.ask("stats", timeout=600.0)
    with session.lock:
        if session.reports is not None:
            session.reports.send(0.0)
    for _ in range(2):
        session.ask("stats")


@dataclass(slots=True)
class Diagnosis:
    """The diagnosis of a block of a script; `findings` is filled at the block's end, the largest share first."""

    recording: Recording = field(default_factory=Recording)
    findings: list[Finding] = field(default_factory=list)

    def observe(self, watched: Watched) -> None:
        self.recording.add(watched.events, watched.dropped)

    def end(self) -> None:
        self.findings = diagnose(self.recording)
