"""A script that watches itself: its own events, over the session that it has."""

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
    """Have `observe` called with what a session's work leads to, from whichever thread receives; at the end, all that was
    asked for is done and told."""
    session.ask("stats")  # what was written before is done by now, and is not seen
    subscribe(session, level, observe)
    session.ask("stats")  # behind it, all look as closely as they are to
    try:
        yield
    except BaseException:  # whatever ended the block, what it sent is done before nobody listens
        with suppress(GTError):
            settle(session)
        raise
    else:
        settle(session)
    finally:
        with suppress(GTError):  # of a session that has ended there is nothing more to hear
            unsubscribe(session, observe)


def settle(session: Any) -> None:
    """Wait until all is done and told. Workers report before they answer; what the dispatcher passes on from these reports
    comes before its next answer."""
    session.ask("stats", timeout=600.0)
    with session.lock:
        if session.reports is not None:
            session.reports.send(0.0, late=True)
    for _ in range(2):
        session.ask("stats")


@dataclass(slots=True)
class Diagnosis:
    """What slows a block of a script; `findings` are there at its end, the worst first."""

    recording: Recording = field(default_factory=Recording)
    findings: list[Finding] = field(default_factory=list)

    def observe(self, watched: Watched) -> None:
        self.recording.add(watched.events, watched.dropped)

    def end(self) -> None:
        self.findings = diagnose(self.recording)
