"""Turns of clients on a worker: the next client by the fair queue, the device time it is charged, and the work that a shared
device still has in flight. It reads a given clock and knows no sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.transport.messages import Mail, Run
from gt.worker.core import Worker
from gt.worker.deferred_runs import DeferredRuns, Found
from gt.worker.fair_queue import SLICE, FairQueue, Share
from gt.worker.peer_names import DISPATCHER
from gt.worker.short_runs import Fits, LongKernels, is_question, is_short
from gt.worker.turns import Turn

SHARED = 1.0  # seconds for which a device counts as shared after several clients were busy
SOON = 120e-6  # seconds for which the device is waited for to answer an interactive client
MEASURED = 250e-6  # seconds between two readings of a shared device's progress, for the charges
LATEST = 500e-6  # seconds for which answers of a shared device wait at most for turns of interactive clients that come
WHOLE = 10e-3  # seconds of a turn up to which it is charged whole, even if the worker had no core for a part of it
PAYS_OFF = 4  # times as long as its memory was moved a client has the device before that of another is moved back


class ClientTurns:
    """`take_in` receives the dispatcher's messages, if that is possible now; `interrupted` returns whether there is mail on
    other sockets, which also ends a turn; `send` sends the mail of a turn."""

    def __init__(
        self, core: Worker, clock: Callable[[], float], take_in: Callable[[], bool], interrupted: Callable[[], bool],
        send: Callable[[list[Mail]], None],
    ) -> None:  # fmt: skip
        self.core, self.clock, self.take_in, self.interrupted, self.send = core, clock, take_in, interrupted, send
        self.queue, self.streams, self.deferred = FairQueue(), core.streams, DeferredRuns(core.spaces)
        self.client, self.began = "", 0.0  # client of the current turn, and its start
        self.core_waits: Callable[[], float] = float  # seconds for which this thread had no core; the shell sets it
        self.waited = 0.0  # these at the start of the turn
        self.arrivals = 0  # count of client arrivals at its start
        self.shared_until = 0.0  # time from which the device no longer counts as shared
        self.measure_at = 0.0  # time of the next reading of its progress
        self.followed = 0  # count of arrivals when the device was last followed
        self.follow_at = 0.0  # time at which it is followed at the latest
        self.weighed, self.weigh_at = -1, 0.0  # count of arrivals when weights were last compared, and when to do so again
        self.second: LongKernels | None = None  # set by the shell where a second thread executes short runs
        self.short_runs = 0  # runs executed within others' turns
        self.resident, self.resident_until = "", 0.0  # whose memory was moved to the device, and how long it is to stay
        behind = self._behind if self.streams is not None else None
        core.executor.questions = self.serve_questions if behind else None
        self.turn = core.executor.turn = Turn(clock, self._others_wait, self._full if behind else None, self._newcomer)
        self.behind = behind
        core.answers.seconds, core.in_turn = self.seconds, self.in_turn

    def several(self) -> bool:
        """Whether other clients than the current one are connected."""
        return self.turn.several

    def asked(self) -> bool:
        """Whether other clients than the current one are interactive."""
        interactive = self.queue.interactive
        return bool(interactive) and (len(interactive) > 1 or self.client not in interactive)

    def on_second_thread(self) -> bool:
        return self.second is not None and self.second.is_current()

    def on_other_thread(self, work: Callable[[], None]) -> None:
        """Call `work` on the second thread when it is idle; not at all if none was started."""
        if self.second is not None:
            self.second.call(work)

    def put(self, client: str, message: Any) -> None:
        self.queue.put(client, message, self.clock())

    def put_all(self, found: Found) -> None:
        """Queue the runs, and send the answers."""
        runs, answers = found
        for run in runs:
            self.put(run.client, run)
        if answers:
            self.send(answers)

    def next(self) -> str | None:
        """The client of the next turn, if there is work."""
        if self.second is not None:
            self.second.check()
        if not self.queue.active and not self.queue.collective_run_begun:
            return None
        if self.queue.collective_run_begun and not self.core.unfinished(self.queue.collective_runs[0]):
            self.queue.ended()
        parked, preempted = self._parked(), self.core.preempted
        for client in self.core.cancellation.gone:  # the rest of their work is skipped, and their memory freed
            if client != parked and self.queue.can_run(client, preempted):
                return client
        away = self._away if self.resident in self.queue.active and self.clock() < self.resident_until else None
        return self.queue.next(parked, preempted, self.behind, away)

    def _away(self, client: str) -> bool:
        """Whether memory of a client was moved to the host. Were it moved back at each of its turns, clients that do not fit
        together would have the device move memory and do little else."""
        return client != self.resident and client in self.core.spaces and self.core.spaces[client].moved > 0

    def serve(self, client: str) -> float:
        """One turn of a client: the rest of a preempted run, or its next message. Returns the time of its end."""
        core, moved = self.core, self.core.host.seconds
        began, timed = self._begin(client)
        if client in core.preempted:
            mails = core.go_on(client)
        else:
            message = self.queue.take(client, began)
            mails = core.handle_run(message) if type(message) is Run else core.handle(Mail(DISPATCHER, message))
        if mails:
            self.send(mails)
        self.queue.preemptions += client in core.preempted
        ended = self._end(client, began, timed)
        if core.host.seconds > moved:
            self.resident, self.resident_until = client, ended + PAYS_OFF * (core.host.seconds - moved)
        return self._answer_soon(client, ended) if timed and client in self.streams.preferred else ended

    def in_turn(self, client: str, work: Callable[[], list[Mail]]) -> list[Mail]:
        """A turn that the fair queue did not give: other workers wait for a client's collective."""
        began, timed = self._begin(client)
        self.turn.start()
        mails = work()
        self._end(client, began, timed, 0)
        return mails

    def _begin(self, client: str) -> tuple[float, bool]:
        """The time, and whether the device is shared."""
        self.waited = self.core_waits() if len(self.queue.active) > 1 else 0.0
        began = self.began = self.clock()
        self.client, self.arrivals = client, self.queue.arrivals
        timed = self.streams is not None and self._share_device(began)
        self.turn.begin(began, len(self.queue.shares) > 1, self._measure if timed else None)
        return began, timed

    def _end(self, client: str, began: float, timed: bool, turns: int = 1) -> float:
        """Charge the turn. Returns the time."""
        ended = self.clock()
        measured, self.turn.starts = timed and self.turn.starts is None, None
        if measured and client in self.queue.shares:
            self.streams.end(client)  # charged when the device has executed it
        else:
            self.queue.charge(client, self._charge(ended - began), turns)
        return ended

    def _charge(self, seconds: float) -> float:
        """The seconds of a turn in which the worker had a core. A client that is charged for more waits until all the others
        have had as much."""
        if seconds < WHOLE or not self.waited:
            return seconds
        return max(0.0, seconds - (self.core_waits() - self.waited))

    def _answer_soon(self, client: str, ended: float) -> float:
        """Send the answers to an interactive client, if the device has them in a moment: to look at all sockets first takes
        longer. Returns the time of the end."""
        streams, now = self.streams, ended
        while streams.awaited(client) and now < ended + SOON:
            if mails := streams.answered():
                self.send(mails)
            now = self.clock()
        self.queue.charge(client, now - ended, 0)
        return now

    def _measure(self) -> None:
        """Measure the turn at hand by events. One of small kernels alone is not measured, as to record events takes longer than
        such a kernel: it is charged the worker's time for its launches."""
        self.streams.begin(self.client)

    def alone(self, receive: Callable[[], Any], read: Callable[[Any], Any], sort: Callable[[Any], None], end: float) -> bool:
        """Until the time `end`, execute messages as they arrive while one client is busy and the queue is empty; other
        messages are passed to `sort`. Returns whether there is nothing more to do now."""
        queue, streams = self.queue, self.streams
        if streams is not None and streams.pending():  # nothing is added to that while one client is busy
            return False
        while not (queue.active or queue.collective_run_begun):
            if (frame := receive()) is None:
                return True
            message, several = read(frame), len(queue.shares) > 1
            share = self._lone(message) if type(message) is Run and not self.deferred.concerns(message) else None
            behind = receive() if several and share is not None else None  # it may be of a client that was idle
            if share is None or behind is not None:
                sort(message)
                if behind is not None:
                    sort(read(behind))
                return False
            if self._serve_alone(message, share) > end or message.gets:
                return True  # (who reads waits for the answer before it sends more)
        return False

    def _lone(self, run: Run) -> Share | None:
        """The share of a run's client, if the run can be executed at once: no other client or work is there."""
        core, streams = self.core, self.streams
        shared = streams is not None and (len(self.queue.shares) > 1 or streams.shared)
        held = core.preempted or core.parked is not None or core.cancellation.gone or core.host.residency.out
        return None if shared or held else self.queue.alone(run)

    def serve_started(self, found: Found) -> None:
        """Deferred runs were started while no client had its turn: execute a lone one at once, and queue the others."""
        runs, answers = found
        busy = self.queue.active or self.queue.collective_run_begun or self.streams is not None and self.streams.pending()
        if len(runs) == 1 and not (answers or busy) and (share := self._lone(runs[0])) is not None:
            self._serve_alone(runs[0], share)
        else:
            self.put_all(found)

    def serve_short(self) -> None:
        """Execute short runs of other clients while the current one is inside a long kernel; called by the second thread. A
        client's longer runs wait for its turn, and its other runs for them."""
        second, interactive = self.second, self.queue.interactive
        if second is None or not self.take_in() or not self._may_serve_within():
            return
        asks: Fits = lambda values, run: values.client in interactive and is_short(values, run)
        while second.inside and (client := self._next_within(is_short if second.for_all else asks)) is not None:
            self._serve_within(client)

    def serve_questions(self) -> None:
        """In the middle of a call with hundreds of operands: execute the questions of interactive clients that are one launch
        each, and send the answers. They would wait for the end of a turn that takes longer than they do."""
        streams, host = self.streams, self.core.host
        if not (streams.shared and streams.preferred and self.take_in() and self._may_serve_within()):
            return
        asks: Fits = lambda values, run: (
            values.client in streams.preferred and is_question(values, run) and host.has_room(values, run)
        )
        while (client := self._next_within(asks)) is not None:
            launched = streams.launched
            with host.still():  # operands of the call are on the device
                self._serve_within(client)
            streams.use(self.client)
            streams.launched = launched
        if streams.answers and (mails := streams.answered(streams.preferred)):
            self.send(mails)

    def _may_serve_within(self) -> bool:
        """Whether runs of others may be executed within a turn."""
        core = self.core
        plain = core.parked is None and core.recorder is None and core.units is None
        return plain and not (core.cancellation.gone or core.host.residency.out)

    def _next_within(self, fits: Fits) -> str | None:
        """The client with the least virtual time whose next run fits into the turn of another."""
        core, found = self.core, self.queue.first_runs(self.client, self.clock() - self.began)
        for client, run in found:
            if client in core.spaces and client not in core.preempted and fits(core.spaces[client], run):
                return client
        return None

    def _serve_within(self, client: str) -> None:
        """A client's next run, to its end, within the turn of another."""
        executor, turn, current, began = self.core.executor, self.core.executor.turn, self.client, self.began
        self.client, self.began, executor.turn = client, self.clock(), None
        try:
            self.send(self.core.handle_run(self.queue.take(client, self.began)))
            self.queue.charge(client, self.clock() - self.began)
        finally:
            self.client, self.began, executor.turn = current, began, turn
        self.short_runs += 1

    def _serve_alone(self, run: Run, share: Share) -> float:
        """A turn of the only busy client: `serve` without the fair queue's steps. Returns the time of its end."""
        began = self.began = self.clock()
        self.client, self.arrivals = run.client, self.queue.arrivals
        self.turn.begin(began, len(self.queue.shares) > 1)
        mails = self.core.handle_run(run)
        if mails:
            self.send(mails)
        if run.client in self.core.preempted:
            self.queue.preemptions += 1
            self.queue.active.setdefault(run.client, share)
        ended = self.clock()
        self.queue.charge_alone(share, ended - began)
        return ended

    def follow_device(self) -> bool:
        """Charge the turns that the device has executed, and send the answers that it has computed. Once an interactive client
        has come, its turn is first, as this takes as long. Returns whether an interactive client may have come meanwhile."""
        streams = self.streams
        if streams is None:
            return False
        now = self.clock()
        if self.queue.arrivals != self.followed:
            self.followed = self.queue.arrivals
            if streams.preferred and now < self.follow_at and self.queue.waits(streams.preferred):
                return False
        worked, self.follow_at = False, now + LATEST
        if now >= self.measure_at:
            self.measure_at = now + MEASURED
            if used := streams.measured():
                self.queue.charge_all(used)
                worked = True
        if streams.answers and (mails := streams.answered()):
            self.send(mails)
            worked = True
        return worked and bool(streams.preferred)

    def device_pending(self) -> bool:
        return self.streams is not None and bool(self.streams.pending())

    def seconds(self, client: str) -> float:
        """Device time of a client, including its current turn."""
        share = self.queue.shares.get(client)
        return (share.seconds if share else 0.0) + self.clock() - self.began

    def stats(self) -> dict[str, Any]:
        queue, streams = self.queue, self.streams
        shares = queue.stats()
        for client, own in shares.items():
            own.update(streams.stats(client) if streams is not None else {})
        counts = {"queue": queue.instructions, "preemptions": queue.preemptions, "short_runs": self.short_runs}
        return {**counts, "shares": shares, **self.deferred.stats()}

    def _parked(self) -> str | None:
        return self.core.parked.run.client if self.core.parked is not None else None

    def _others_wait(self) -> bool:
        """Whether other clients than the current one wait for this worker, or there is mail that may be theirs."""
        if not self.take_in():
            return False
        if self.client in self.core.cancellation.gone:
            return True  # the rest is skipped: the dispatcher has this worker's count of begun collectives
        return self.queue.others(self.client, self._parked(), self.core.preempted) or self.interrupted()

    def _newcomer(self) -> bool:
        """Whether work of a previously idle client arrived since this turn began. Sends the answers that the device has
        computed."""
        if not self.take_in():
            return False
        self.follow_device()
        return self.client in self.core.cancellation.gone or self.queue.newcomer(self.client, self.arrivals)

    def _share_device(self, now: float) -> bool:
        """Whether several clients are busy on an asynchronous device, or were a moment ago."""
        streams = self.streams
        if len(self.queue.active) > 1:
            self.shared_until = now + SHARED
            if self.queue.arrivals != self.weighed or now >= self.weigh_at:
                self.weighed, self.weigh_at = self.queue.arrivals, now + SLICE
                streams.ordered = not self.queue.even(streams.preferred)
        streams.shared = now < self.shared_until
        return bool(streams.shared)

    def _behind(self, client: str) -> bool:
        """Whether a client has too much work in flight on the device for another turn."""
        streams = self.streams
        return bool(streams.shared and streams.behind(client, len(self.queue.active) == 1))

    def _full(self) -> bool:
        """Whether the current client has the maximum of work in flight on the device."""
        streams = self.streams
        return bool(streams.shared and streams.full(self.client, len(self.queue.active) == 1))
