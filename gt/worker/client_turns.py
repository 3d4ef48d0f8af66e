"""Turns of clients on a worker: whose comes next by the fair queue, what it is charged, and whose kernels the device still has
before it where several clients share it. It reads the clock that it is given and knows no sockets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gt.transport.messages import Mail, Run
from gt.worker.core import Worker
from gt.worker.fair_queue import FairQueue, Share
from gt.worker.peer_names import DISPATCHER
from gt.worker.turns import Turn

SHARED = 1.0  # seconds for which a device counts as shared after several clients were busy on it
PAYS_OFF = 4  # times as long as its memory was moved a client has the device before that of another is moved back


class ClientTurns:
    """`take_in` receives what the dispatcher has sent, where that can be done now; `interrupted` tells of mail on other
    sockets, which ends a turn, too; `send` takes the mail that follows from a turn."""

    def __init__(
        self, core: Worker, clock: Callable[[], float], take_in: Callable[[], bool], interrupted: Callable[[], bool],
        send: Callable[[list[Mail]], None],
    ) -> None:  # fmt: skip
        self.core, self.clock, self.take_in, self.interrupted, self.send = core, clock, take_in, interrupted, send
        self.queue = FairQueue()
        self.client, self.began = "", 0.0  # whose turn it is, and since when
        self.arrivals = 0  # of clients, when it began
        self.shared_until = 0.0  # when the device counts as one client's again
        self.resident, self.resident_until = "", 0.0  # whose memory was moved to the device, and how long it is to stay
        behind = self._behind if core.streams is not None else None
        self.turn = core.executor.turn = Turn(
            clock, self._others_wait, partial(behind, None) if behind else None, self._newcomer
        )
        self.behind = behind
        core.answers.seconds = self.seconds

    def put(self, client: str, message: Any) -> None:
        self.queue.put(client, message, self.clock())

    def next(self) -> str | None:
        """The client whose turn it is, if there is something to do."""
        if not self.queue.active and not self.queue.collective_run_begun:
            return None
        if self.queue.collective_run_begun and not self.core.unfinished(self.queue.collective_runs[0]):
            self.queue.ended()
        parked, preempted = self._parked(), self.core.preempted
        for client in self.core.cancellation.gone:  # the rest of their work is skipped, and their memory freed
            if client != parked and self.queue.can_go_on(client, preempted):
                return client
        away = self._away if self.resident in self.queue.active and self.clock() < self.resident_until else None
        return self.queue.next(parked, preempted, self.behind, away)

    def _away(self, client: str) -> bool:
        """Whether memory of a client was moved to the host. Were it moved back at each of its turns, clients that do not fit
        together would have the device move memory and do little else."""
        return client != self.resident and client in self.core.spaces and self.core.spaces[client].moved > 0

    def serve(self, client: str) -> float:
        """One turn of a client: the rest of a run that was left for another client, or its next message. When it ended."""
        began, core, streams = self.clock(), self.core, self.core.streams
        self.began, moved = began, core.host.seconds
        self.client, self.arrivals = client, self.queue.arrivals
        self.turn.begin(began, len(self.queue.shares) > 1)
        timed = streams is not None and self._share_device(began)
        if timed:
            streams.begin(client)
        if client in core.preempted:
            mails = core.go_on(client)
        else:
            mails = core.handle(Mail(DISPATCHER, self.queue.take(client, began)))
        if mails:
            self.send(mails)
        self.queue.preemptions += client in core.preempted
        ended = self.clock()
        if core.host.seconds > moved:
            self.resident, self.resident_until = client, ended + PAYS_OFF * (core.host.seconds - moved)
        if timed and client in self.queue.shares:
            streams.end(client)  # charged when the device has come to it
        else:
            self.queue.charge(client, ended - began)
        return ended

    def alone(self, receive: Callable[[], Any], read: Callable[[Any], Any], sort: Callable[[Any], None], end: float) -> bool:
        """Do messages as they come while there is one client and nothing waits, until this time; others are `sort`ed. Whether
        there is nothing more to do now."""
        queue = self.queue
        while not (queue.active or queue.collective_run_begun or self.device_pending()):
            if (frame := receive()) is None:
                return True
            message = read(frame)
            share = queue.alone(message) if type(message) is Run and self._nobody_waits() else None
            if share is None:
                sort(message)
                return False
            if self._serve_alone(message, share) > end:
                return True
        return False

    def _nobody_waits(self) -> bool:
        core = self.core
        shared = core.streams is not None and core.streams.shared
        return not (core.preempted or core.parked is not None or core.cancellation.gone or shared)

    def _serve_alone(self, run: Run, share: Share) -> float:
        """A turn of the only client there is, as far as `serve` has a meaning for it. When it ended."""
        began = self.began = self.clock()
        self.client = run.client
        self.turn.begin(began)
        mails = self.core.handle(Mail(DISPATCHER, run))
        if mails:
            self.send(mails)
        if run.client in self.core.preempted:
            self.queue.preemptions += 1
            self.queue.active.setdefault(run.client, share)
        ended = self.clock()
        self.queue.charge_alone(share, ended - began)
        return ended

    def follow_device(self) -> None:
        """Charge the turns that the device has ended, and send the answers that it has come to."""
        streams = self.core.streams
        if streams is None:
            return
        for client, seconds in streams.measured():
            self.queue.charge(client, seconds)
        if streams.answers:
            self.send(streams.answered())

    def device_pending(self) -> bool:
        return self.core.streams is not None and self.core.streams.pending()

    def seconds(self, client: str) -> float:
        """Device time that a client has had, that of its turn under way included."""
        share = self.queue.shares.get(client)
        return (share.seconds if share else 0.0) + self.clock() - self.began

    def stats(self) -> dict[str, Any]:
        queue = self.queue
        return {"queue": queue.instructions, "preemptions": queue.preemptions, "shares": queue.stats()}

    def _parked(self) -> str | None:
        return self.core.parked.run.client if self.core.parked is not None else None

    def _others_wait(self) -> bool:
        """Whether others than the client at hand wait for this worker, or mail came that may be for them."""
        if not self.take_in():
            return False
        if self.client in self.core.cancellation.gone:
            return True  # the rest is skipped: the dispatcher was told how many collectives had begun
        return self.queue.others(self.client, self._parked(), self.core.preempted) or self.interrupted()

    def _newcomer(self) -> bool:
        """Whether a client came since this turn began that had nothing to do. Answers that the device has come to are sent."""
        if not self.take_in():
            return False
        self.follow_device()
        return self.client in self.core.cancellation.gone or self.queue.newcomer(self.client, self.arrivals)

    def _share_device(self, now: float) -> bool:
        """Whether several clients are busy on a device that runs behind, or were a moment ago."""
        streams = self.core.streams
        if len(self.queue.active) > 1:
            self.shared_until = now + SHARED
            streams.ordered = not self.queue.even(streams.preferred)
        streams.shared = now < self.shared_until
        return bool(streams.shared)

    def _behind(self, client: str | None) -> bool:
        """Whether the device has enough of a client's work before it; of the one at hand, where none is named."""
        streams = self.core.streams
        return bool(streams.shared and streams.behind(client or self.client))
