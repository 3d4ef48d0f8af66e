"""Stalled collectives: the missing workers are determined, the client is warned once, and finally the collective is given
up."""

from __future__ import annotations

from typing import Any

from gt.transport.messages import Mail, Note
from gt.worker.collectives.mail import PendingCollective, listed
from gt.worker.core import Worker
from gt.worker.peer_names import DISPATCHER

ANSWER_SECONDS = 0.5  # seconds for the peers to answer that they wait, too


class Stalls:
    """Periodically checks the collective that a worker's queue waits for. After `stall` seconds it is reported with the workers
    that do not answer; after `limit` (GT_COLLECTIVE_TIMEOUT) it is given up."""

    def __init__(self, worker: Worker, stall: float, limit: float) -> None:
        self.worker, self.stall, self.limit = worker, stall, limit
        self.parked: Any = None  # the parked run, and the start of its wait
        self.since = 0.0
        self.asked = self.told = False  # whether the peers were queried, and the client warned

    def look(self, now: float) -> list[Mail]:
        """The mail to send."""
        parked = self.worker.parked
        assert parked is not None
        if parked is not self.parked:
            self.parked, self.since, self.asked, self.told = parked, now, False, False
            return []
        wait, client, waited = parked.stopped.wait, parked.run.client, now - self.since
        if not self.asked and waited > min(self.stall, self.limit / 2):
            self.asked = True
            wait.ask()
            return self.worker.collectives.outgoing()
        if waited > self.limit:
            why = f"after {self.limit:g} s (GT_COLLECTIVE_TIMEOUT): {self._missing(wait)}"
            wait.give_up(self._report(wait, "was given up", why))
            return self.worker.resume()
        if not self.told and waited > self.stall + ANSWER_SECONDS:
            self.told = True
            text = self._report(wait, "waits", f"for more than {self.stall:g} s: {self._missing(wait)}")
            return [Mail(DISPATCHER, Note(text, wait.tag, client))]
        return []

    def _report(self, wait: PendingCollective, what: str, why: str) -> str:
        group, worker = listed(wait.kind.settings["group"]), self.worker
        return f"{wait.kind.row.name} of workers {group} {what} on worker {worker.name} (index {worker.index}) {why}"

    def _missing(self, wait: PendingCollective) -> str:
        peers = self.worker.collectives.peers
        late = [f"{peers[m].name} (index {m})" for m in wait.missing() if m in peers]
        named = listed(late)[1:-1]  # a note above the length limit would be dropped
        return f"worker{'s' * (len(late) > 1)} {named} did not come" if late else "all of them came"
