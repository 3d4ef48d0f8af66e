"""A worker's queue and clients: `handle(mail) -> [mail]`. Runs are executed in the order of arrival (`InstructionExecutor`)
and answered (`Answers`); it knows no sockets. Each client has ids and kinds of its own."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from gt.errors import ProtocolError
from gt.ops.table import spec_in
from gt.transport.events import END, OFF, STRETCH, Listen
from gt.transport.messages import (
    Aborted,
    Answer,
    Arrived,
    Ask,
    Begun,
    Came,
    Drop,
    InputFailed,
    Mail,
    Note,
    Noted,
    Peers,
    Piece,
    Progress,
    Run,
    Skip,
    StallQuery,
    Upload,
    Ways,
    Welcome,
    size_of,
)  # fmt: skip
from gt.worker import transfers
from gt.worker.answers import Answers
from gt.worker.cancel import Cancellation, Cancelled, Parked
from gt.worker.client_values import ClientValues, Code, check_device
from gt.worker.collectives.mail import Collectives, MailCollectives
from gt.worker.counts import Counts
from gt.worker.definitions import Definitions
from gt.worker.engine import Engine
from gt.worker.executor import InstructionExecutor
from gt.worker.host_memory import moved_bytes
from gt.worker.paused_run import PausedRun
from gt.worker.peer_names import DISPATCHER
from gt.worker.programs.listing import listed
from gt.worker.programs.sharded import unfold
from gt.worker.programs.units import Units
from gt.worker.quotas import Quotas
from gt.worker.recorder import Recorder
from gt.worker.refusals import refusal
from gt.worker.segments import Memory
from gt.worker.turns import Preempted
from gt.worker.unreported import MAX_UNREPORTED

REPORT = 1 << 13  # instructions and reads of a client after which its progress is reported to the dispatcher


class Worker:
    def __init__(self, engine: Engine, memory: Memory | None = None, collectives: Collectives | None = None) -> None:
        self.quotas, self.cancellation = Quotas(), Cancellation()
        self.executor = InstructionExecutor(engine, self.quotas, self.cancellation)
        self.memory = memory or Memory()
        self.spaces: dict[str, ClientValues] = {}
        self.answers = Answers(self.executor, self.memory)
        self.definitions = Definitions(self.executor, self.memory, self.spaces, self._refused)
        self.collectives = collectives or MailCollectives(engine)
        self.index, self.dropped, self.runs, self.counts = -1, 0, 0, Counts()
        self.more: Callable[[], dict[str, Any]] = dict  # the shell's statistics
        self.left: Callable[[str], None] = lambda client: None  # called after the last work of a departed client
        self.units: Units | None = None  # with GT_WORKER_BATCH_SIZE, the programs of consecutive instructions
        self.say: Callable[[str], None] = lambda line: None  # called with a line for each compiled program
        self.tell: Callable[[str], None] = lambda line: None  # called with a line for each dropped message
        # Sends mail at once, and returns the mail that it could not send.
        self.flush: Callable[[list[Mail]], list[Mail] | None] = list
        self.clock: Callable[[], float] = float  # the shell sets a real clock
        self.in_turn: Callable[[str, Callable[[], Any]], Any] = lambda client, work: work()  # the shell charges the client
        self.parked: PausedRun[Parked] | None = None  # the run that waits for other workers
        self.preempted: dict[str, PausedRun[Preempted]] = {}  # preempted runs, by client
        self.backlog: deque[Run | Drop | Ask] = deque()  # messages that arrived while the queue was stopped
        self.recorder: Recorder | None = None  # set while there is an observer
        self.turns = 0  # count of turns, to find the least recently served client
        self.host = self.executor.host
        self.host.worker = self
        self.prompt = False  # whether spans are reported after each message; else the shell polls for them

    @property
    def engine(self) -> Engine:
        return self.executor.engine

    @property
    def streams(self) -> Any:
        return self.executor.streams

    @property
    def name(self) -> str:
        return self.executor.name

    def handle(self, mail: Mail) -> list[Mail]:
        """The messages that answer one message. An error in it affects only its sender."""
        try:
            out = self._handle(mail)
        except Exception as wrong:  # no message may end a worker that other clients use
            check_device(self.engine, wrong)
            return self._refused(mail.peer, mail.message, wrong)
        return out + self.reports() if self.prompt and self.recorder is not None else out

    def handle_run(self, run: Run) -> list[Mail]:
        """`handle` of a dispatcher's run, of which there are more than of all other messages."""
        try:
            out = self.run(run)
        except Exception as wrong:  # no message may end a worker that other clients use
            check_device(self.engine, wrong)
            return self._refused(DISPATCHER, run, wrong)
        return out + self.reports() if self.prompt and self.recorder is not None else out

    def drop(self, what: str) -> None:
        """Count and report a dropped message."""
        self.dropped += 1
        self.tell(f"dropped {what}")

    def _refused(self, peer: str, message: Any, wrong: Exception) -> list[Mail]:
        sender = peer if peer.startswith("#") else "a client" if peer else "the dispatcher"  # clients' names are secrets
        self.drop(f"{type(message).__name__} of {sender}: {type(wrong).__name__}: {wrong}")
        if type(message) is Run and message.client in self.spaces and (watched := self.spaces[message.client].watched):
            watched.cut()
        if not isinstance(wrong, ProtocolError):
            self.tell("".join(traceback.format_exception(wrong)).rstrip())
        return list(refusal(message, wrong, DISPATCHER)) if peer == DISPATCHER else []

    def _handle(self, mail: Mail) -> list[Mail]:
        if mail.peer == DISPATCHER:
            return self._from_dispatcher(mail.message)
        match mail.message:
            case Piece() as piece if self.collectives.from_peer(mail.peer, piece.sender) and len(mail.frames) == 1:
                self.collectives.receive(piece, mail.frames[0])
                return self.resume()
            case (InputFailed() | StallQuery() | Noted() | Ways() | Aborted()) as word if self.collectives.from_peer(
                mail.peer, word.sender
            ):
                self.collectives.hear(word)
                return self.resume() + self.collectives.outgoing()
            case Upload(client, id, spec) if mail.peer == client and mail.frames:
                if self.streams is not None:
                    self.streams.use(client)
                values = self._values(client)
                room = partial(self._room, values)
                self.dropped += not transfers.keep_upload(self.engine, values, id, spec_in(spec), mail.frames[0], room)
                return [Mail(DISPATCHER, Arrived(client, id))]
        raise ProtocolError(f"unexpected {type(mail.message).__name__}")

    def _room(self, values: ClientValues, nbytes: int) -> None:
        """Raise if there is no room for the bytes of a client's upload."""
        self.quotas.uploaded(values, nbytes, self.engine)
        self.host.uploaded(values, nbytes)

    def _from_dispatcher(self, message: Any) -> list[Mail]:
        match message:
            case Run() as run:
                return self.run(run)
            case Ask(ticket, "stats", (_, whose)):
                return [*self.reports(), Mail(DISPATCHER, Answer(ticket, self.stats(whose)))]
            case Came() as came:
                self.quotas.introduce(came)
                return []
            case Ask() | Drop() if self.parked is not None:
                self.backlog.append(message)
                return self.leaving(message) if isinstance(message, Drop) else []
            case Ask(ticket, "programs", (client, _)):
                known = self.spaces[client].kinds.values() if client in self.spaces else ()
                return [Mail(DISPATCHER, Answer(ticket, listed(ready for _, _, ready in known)))]
            case Drop() as drop:
                told = self.leaving(drop)
                self._drop(drop.client)
                return told
            case Skip(number, counts):
                self.cancellation.settle(number, counts)
                return self.resume()
            case Peers(workers, lost):
                self.collectives.meet(workers, lost)
                self.executor.forget_lost(frozenset(w.index for w in workers))
                return self.resume() + self.collectives.outgoing()
            case Listen() as asked:
                return self._listen(asked)
            case Welcome(name, index):
                self.executor.name, self.index = name, index
                self.collectives.index = index
                return []
        raise ProtocolError(f"unexpected {type(message).__name__} from the dispatcher")

    def _listen(self, asked: Listen) -> list[Mail]:
        """Start, change or stop recording for observers."""
        last, recorder = self.reports(), self.recorder or Recorder(self.clock, self.engine.sync, self.executor.ticks)
        recorder.listen(asked, self.spaces.values())
        self.recorder = recorder if recorder.highest() > OFF else None
        return last

    def reports(self) -> list[Mail]:
        """The events recorded since the last report."""
        recorder = self.recorder  # the shell calls this on another thread
        found = recorder.report() if recorder is not None else None
        return [Mail(DISPATCHER, found)] if found is not None else []

    def leaving(self, drop: Drop) -> list[Mail]:
        """A client has left; its Drop is queued after its other messages."""
        if not self.cancellation.note(drop.client, drop.number) or not drop.number:
            return []
        return [Mail(DISPATCHER, Begun(drop.number, tuple(self.executor.collectives_begun.items())))]

    def _drop(self, client: str) -> None:
        """A client is gone, and its work is done."""
        self.cancellation.over(client)
        self.counts.retire_all(self.spaces.pop(client, None))
        self.quotas.forget(client)
        if self.recorder is not None:
            self.recorder.forget(client)
        if self.streams is not None:
            self.streams.forget(client)
        self.left(client)

    def _values(self, client: str) -> ClientValues:
        """A client's values, created at its first message."""
        found = self.spaces.get(client)
        if found is None:
            found = self.spaces[client] = ClientValues(client, self.executor, self.executor.ticks)
            if self.recorder is not None:
                self.recorder.watch(found)
        return found

    def run(self, run: Run) -> list[Mail]:
        if self.parked is not None and self.executor.turn is None:
            self.backlog.append(run)
            return []
        if (values := self.spaces.get(run.client)) is None:
            values = self._values(run.client)
        if run.kinds or run.traces:
            compile, say = self.units is not None, partial(self.report_program, run.client)
            self.definitions.define(values, run, self.collectives, compile, say)
        values.broken.clear()
        values.add_counts(run.code)
        code: Code = iter(run.code)
        if values.has_sharded:
            code = unfold(values, code)
        if self.units is not None:
            code = self.units.fold(values, code, self)
        if self.quotas.own or self.quotas.users:
            code = self.quotas.watch(values, code, self.engine, self.executor.fail)
        code = self.host.watch(values, code)
        if (watched := values.watched) is not None:  # without calls of Python, which take long between kernels
            end = None if run.gets or run.ack else (END, run.serial)
            if watched.plain:
                code = watched.over(code, end)
            elif not watched.skip:
                code = watched.watch(code, end)
            else:  # outside the sample: timed as a whole
                watched.skip -= 1
                watched.add((STRETCH, len(run.code)))
        return self._proceed(values, run, code)

    def report_program(self, client: str, text: str, seconds: float | None = None, line: str = "") -> None:
        """Report a line about a program; with `seconds`, about its compilation, which may have failed. `line` is the user's."""
        self.say(text)
        if seconds is not None and self.recorder is not None:
            self.recorder.compile(client, seconds, text, line)

    def _proceed(self, values: ClientValues, run: Run, rest: Code, stopped: Preempted | None = None) -> list[Mail]:
        """Execute the rest of a run, until its end or until it must wait for other workers or clients. The traceback of the
        exception that stopped it is dropped: its frames hold the operands and, in a reference cycle, the exception."""
        if (streams := self.executor.streams) is not None:
            streams.use(run.client)
        self.turns += 1
        values.used, watched = self.turns, values.watched
        if watched is not None and watched.paused is not None:
            watched.go_on()
        try:
            if run.client in self.cancellation.gone:
                self.executor.skip(values, rest if stopped is None else chain((stopped.instruction,), rest))
            else:
                self.executor.run(values, rest, stopped, len(run.code))
        except Cancelled:
            return self._proceed(values, run, rest)
        except Preempted as preempted:
            preempted.__traceback__ = None
            self.preempted[run.client] = PausedRun(preempted, values, run, rest)
            if watched is not None:
                watched.pause(False)
            return self.collectives.outgoing()
        except Parked as parked:
            parked.__traceback__ = None
            self.parked = PausedRun(parked, values, run, rest)
            if watched is not None:
                watched.pause(True)
            return self.collectives.outgoing()
        return self._ended(values, run)

    def _ended(self, values: ClientValues, run: Run) -> list[Mail]:
        """The mail after a run's last instruction."""
        self.runs += 1
        out = self.collectives.outgoing()
        if run.client in self.cancellation.gone:
            return out
        values.executed += size_of(run)
        if values.executed - values.reported >= REPORT:
            values.reported = values.executed
            out.append(Mail(DISPATCHER, Progress(run.client, values.executed)))
        if values.warnings:
            out += [Mail(DISPATCHER, Note(text, 0, run.client)) for text in values.warnings]
            values.warnings.clear()
        if values.broken and not run.ack and len(self.collectives.peers) > 1:  # where there is a choice of workers
            out.append(self.answers.of_failures(values))
        if run.gets or run.ack:
            out += self.answers.of_run(values, run)
        if (watched := values.watched) is not None:
            if watched.stamps.ended != (end := (END, run.serial)):  # else it was noted behind the last instruction
                watched.add(end)
            if len(watched.stamps) > MAX_UNREPORTED:
                watched.drop()
        if run.forget or run.drops:
            self.counts.forget(values, run)
        return out

    def go_on(self, client: str) -> list[Mail]:
        """Continue a preempted run in its client's next turn."""
        paused = self.preempted.pop(client)
        return self._proceed(paused.values, paused.run, paused.rest, paused.stopped)

    def paused(self, client: str) -> PausedRun[Parked] | PausedRun[Preempted] | None:
        """This client's run in progress."""
        parked = self.parked if self.parked is not None and self.parked.run.client == client else None
        return self.preempted.get(client, parked)

    def replace_rest(self, client: str, rest: Code) -> None:
        """Continue a preempted run with these instructions."""
        if client in self.preempted:
            self.preempted[client] = replace(self.preempted[client], rest=rest)
        elif self.parked is not None:
            self.parked = replace(self.parked, rest=rest)

    def unfinished(self, client: str) -> bool:
        return self.paused(client) is not None

    def resume(self) -> list[Mail]:
        """Go on where the queue stopped for other workers, as far as that can be."""
        out: list[Mail] = []
        while (parked := self.parked) is not None:
            out = self.in_turn(parked.run.client, partial(self._end_collective, parked, out))
            if self.parked is parked:
                break
            out += self._catch_up()
        return out

    def _end_collective(self, parked: PausedRun[Parked], out: list[Mail]) -> list[Mail]:
        """Go on with a parked run, if its collective has ended."""
        if self.streams is not None:
            self.streams.use(parked.run.client)  # others' turns came between; a collective's end launches kernels, too
        if not parked.stopped.wait.ready():
            return out + self.collectives.outgoing()
        self.parked = None
        self.executor.settle(parked.values, parked.stopped.instruction, parked.stopped.wait)
        out = self.flush(out + self.collectives.outgoing()) or []  # peers may wait for it
        return out + self._proceed(parked.values, parked.run, parked.rest)

    def _catch_up(self) -> list[Mail]:
        """Handle the messages that arrived while the queue was stopped."""
        out: list[Mail] = []
        flush, self.flush = self.flush, list  # the caller's mail must be sent first
        while self.backlog and self.parked is None:
            out += self._from_dispatcher(self.backlog.popleft())
        self.flush = flush
        return out

    def stats(self, whose: Collection[str] | None = None) -> dict[str, Any]:
        """Statistics of this worker; with `whose`, of these clients' work alone, and how busy and full it is."""
        used, total = self.engine.memory()
        more, seen = self.more(), self.spaces.keys() if whose is None else self.spaces.keys() & set(whose)
        shares, own = more.setdefault("shares", {}), [self.spaces[client] for client in seen]
        for values in own:
            shares.setdefault(values.client, {}).update(self.quotas.stats(values, self.engine), moved=moved_bytes(values))
        found = {
            "engine": self.engine.name, "device": self.engine.device, "base": self.engine.base,
            "fell_back": self.engine.fell_back, "bytes": used, "bytes_total": total,
        }  # fmt: skip
        if whose is not None:
            shares = {client: shares[client] for client in seen}
            return found | Counts().totals(own) | {
                "failures": sum(v.failures for v in own), "over_quota": sum(v.over_quota for v in own), "shares": shares,
                "queue": sum(share.get("queue", 0) for share in shares.values()), "idle": more.get("idle", 1.0),
            }  # fmt: skip
        return found | self.counts.totals(own) | {
            "failures": self.executor.failures, "dropped": self.dropped + self.answers.refused, "runs": self.runs,
            "over_quota": self.quotas.exceeded, "skipped": self.executor.skipped, **self.host.stats(),
            "collectives": dict(self.collectives.ways), **more,
            "small_kernels": self.engine.small_runs.counts() if self.engine.small_runs is not None else {},
        }  # fmt: skip
