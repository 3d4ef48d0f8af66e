"""A worker's queue and ids: `handle(mail) -> [mail]`. It runs kernels on its engine, in the order of arrival, and knows no
sockets. Each client has ids and kinds of its own."""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain, islice
from typing import Any, cast

from gt.errors import ProtocolError
from gt.ops.table import spec_in
from gt.program import Program
from gt.program.code import by_result
from gt.spec import Spec
from gt.transport.checks import kind_in
from gt.transport.events import OFF, Listen
from gt.transport.messages import (
    Aborted,
    Answer,
    Arrived,
    Ask,
    Begun,
    Came,
    Done,
    Drop,
    Failed,
    Fetch,
    InputFailed,
    KindDef,
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
from gt.worker.cancel import Cancellation, Cancelled, Parked, Unsettled
from gt.worker.client_values import Broken, ClientValues, Code, Poisoned, check_inputs, failure_on, run_general
from gt.worker.collectives.mail import Collectives, MailCollectives, Members, PendingCollective
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.counts import Counts
from gt.worker.definitions import define
from gt.worker.engine import Engine
from gt.worker.programs.compile import COLLECTIVE, FREED, TRACE, Ready
from gt.worker.programs.listing import listed
from gt.worker.programs.sharded import ShardedTrace, unfold
from gt.worker.programs.units import Unit, Units
from gt.worker.quotas import Quotas
from gt.worker.recorder import Recorder
from gt.worker.refusals import mismatched_operand, refusal
from gt.worker.segments import Absent, Memory
from gt.worker.turns import LIGHT, Preempted, Turn

Left = tuple[tuple[Any, ...], Callable[[], None] | None]  # an instruction to execute, or one under way and how to go on with it
DISPATCHER = ""  # the peer that instructions come from
REPORT = 1 << 13  # instructions and reads of a client after which the dispatcher is told that they are done


class Worker:
    def __init__(self, engine: Engine, memory: Memory | None = None, collectives: Collectives | None = None) -> None:
        self.engine, self.memory = engine, memory or Memory()
        self.streams = engine.streams
        self.spaces: dict[str, ClientValues] = {}
        self.index, self.name, self.dropped, self.failures, self.runs = -1, "", 0, 0, 0
        self.skipped = 0  # instructions of clients that were gone
        self.counts = Counts()
        self.more: Callable[[], dict[str, Any]] = dict  # what only the shell can tell
        self.left: Callable[[str], None] = lambda said: None  # told when all that a client asked for before it went is done
        self.units: Units | None = None  # with GT_WORKER_BATCH_SIZE, the stretches that run as one
        self.say: Callable[[str], None] = lambda said: None  # told what is compiled
        self.show: Callable[[str, Program], None] = lambda stage, program: None  # told each program that a pass gives
        self.tell: Callable[[str], None] = lambda said: None  # told what is dropped
        self.collectives = collectives or MailCollectives(engine)
        self.parked: tuple[Parked, ClientValues, Run, Code] | None = None  # waits for other workers
        self.absent = Absent()
        self.backlog: deque[Run | Drop | Ask] = deque()  # what came meanwhile
        self.clock: Callable[[], float] = float  # the shell gives a real one
        self.seconds: Callable[[str], float] = lambda client: 0.0  # device time that a client has had, which the shell knows
        self.cancellation = Cancellation()
        self.quotas = Quotas()
        self.begun: Counter[Members] = Counter()  # collectives that were begun or skipped: all members count alike
        self.turn: Turn | None = None  # the shell's, by which clients take turns; without it, each run goes to its end
        self.recorder: Recorder | None = None  # while someone watches
        self.prompt = False  # whether what it recorded is reported behind each message; else the shell asks for it
        # Runs that were left for another client: what is left of each, and where it was left
        self.preempted: dict[str, tuple[ClientValues, Run, Code, Left]] = {}

    def handle(self, mail: Mail) -> list[Mail]:
        """All that follows from one message. Whatever goes wrong with it costs its sender alone."""
        try:
            out = self._handle(mail)
        except Exception as wrong:  # a message may do what nobody thought of; the worker is there for others, too
            return self._refused(mail.peer, mail.message, wrong)
        return out + self.reports() if self.prompt and self.recorder is not None else out

    def _refused(self, peer: str, message: Any, wrong: Exception) -> list[Mail]:
        self.dropped += 1
        self.tell(f"dropped {type(message).__name__} of {peer or 'the dispatcher'}: {type(wrong).__name__}: {wrong}")
        if not isinstance(wrong, ProtocolError):
            self.tell("".join(traceback.format_exception(wrong)).rstrip())
        return list(refusal(message, wrong, DISPATCHER)) if peer == DISPATCHER else []

    def _handle(self, mail: Mail) -> list[Mail]:
        match mail.message:
            case Run() as run if mail.peer == DISPATCHER:
                return self.run(run)
            case Ask(ticket, "stats", (_, whose)) if mail.peer == DISPATCHER:
                return [*self.reports(), Mail(DISPATCHER, Answer(ticket, self.stats(whose)))]
            case Came() as came if mail.peer == DISPATCHER:
                self.quotas.introduce(came)
                return []
            case (Ask() | Drop()) as message if mail.peer == DISPATCHER and self.parked is not None:
                self.backlog.append(message)
                return self.leaving(message) if isinstance(message, Drop) else []
            case Ask(ticket, "programs", (client, _)) if mail.peer == DISPATCHER:
                known = self.spaces[client].kinds.values() if client in self.spaces else ()
                return [Mail(DISPATCHER, Answer(ticket, listed(ready for _, _, ready in known)))]
            case Ask(ticket, about, (client, keep)) if mail.peer == DISPATCHER:
                space = self._values(client)
                spans = space.record(keep if about == "record" else 0, self.clock, self.engine.sync)
                return [Mail(DISPATCHER, Answer(ticket, {"spans": spans}))]
            case Drop() as drop if mail.peer == DISPATCHER:
                return self.leaving(drop) + self._drop(drop.client, drop)
            case Skip(number, counts) if mail.peer == DISPATCHER:
                self.cancellation.settle(number, counts)
                return self.resume()
            case Peers(workers, lost) if mail.peer == DISPATCHER:
                self.collectives.meet(workers, lost)
                return self.resume() + self.collectives.outgoing()
            case Piece() as piece if self.collectives.from_peer(mail.peer, piece.sender) and len(mail.frames) == 1:
                self.collectives.receive(piece, mail.frames[0])
                return self.resume()
            case (InputFailed() | StallQuery() | Noted() | Ways() | Aborted()) as word if self.collectives.from_peer(
                mail.peer, word.sender
            ):
                self.collectives.hear(word)
                return self.resume() + self.collectives.outgoing()
            case Listen() as asked if mail.peer == DISPATCHER:
                return self._listen(asked)
            case Welcome(name, index) if mail.peer == DISPATCHER:
                self.name, self.index = name, index
                self.collectives.index = index
                return []
            case Upload(client, id, spec) if mail.peer == client and mail.frames:
                if self.streams is not None:
                    self.streams.use(client)
                space, room = self._values(client), partial(self.quotas.uploaded, self._values(client), engine=self.engine)
                self.dropped += not transfers.keep_upload(self.engine, space, id, spec_in(spec), mail.frames[0], room)
                return [Mail(DISPATCHER, Arrived(client, id))]
        raise ProtocolError(f"{type(mail.message).__name__} from {mail.peer!r} does not belong")

    def _listen(self, asked: Listen) -> list[Mail]:
        """Someone begins to watch, or nobody does any more."""
        last = self.reports()
        if asked.level == OFF and not any(level for _, level in asked.clients):
            self.recorder = None
            return last
        self.recorder = self.recorder or Recorder(self.clock, self.engine.sync)
        self.recorder.listen(asked)
        return last

    def reports(self) -> list[Mail]:
        """What was recorded since this was last asked."""
        recorder = self.recorder  # the shell asks from another thread
        found = recorder.report() if recorder is not None else None
        return [Mail(DISPATCHER, found)] if found is not None else []

    def leaving(self, drop: Drop) -> list[Mail]:
        """A client's end is on its way to this worker, behind what else is the client's."""
        if not self.cancellation.note(drop.client, drop.number) or not drop.number:
            return []
        return [Mail(DISPATCHER, Begun(drop.number, tuple(self.begun.items())))]

    def _drop(self, client: str, drop: Drop) -> list[Mail]:
        """A client is gone. Its work that waits for it is begun all the same, as other workers may have begun theirs."""
        self.absent.given_up.add(client)
        out = self.resume()
        if self.parked is not None:
            self.backlog.append(drop)
            return out
        self.absent.drop(client)
        self.cancellation.over(client)
        self.counts.retire_all(self.spaces.pop(client, None))
        self.quotas.forget(client)
        if self.recorder is not None:
            self.recorder.forget(client)
        if self.streams is not None:
            self.streams.forget(client)
        self.left(client)
        return out

    def _values(self, client: str) -> ClientValues:
        """What there is of this client's."""
        found = self.spaces.get(client)
        if found is None:
            found = self.spaces[client] = ClientValues(client, self._over)
        return found

    def run(self, run: Run) -> list[Mail]:
        if self.parked is not None and self.turn is None:
            self.backlog.append(run)
            return []
        if self.absent.holds(run, self.memory, self.clock):
            return []
        space = self._values(run.client)
        if run.kinds or run.traces:
            self._define(space, run)
        space.broken.clear()
        space.add_counts(run.code)
        code = iter(run.code) if not space.joints else unfold(space, run.code)
        if self.units is not None:
            code = self.units.fold(space, code, self)
        if self.quotas.came:
            code = self.quotas.watch(space, code, self.engine, self._broken)
        if space.times is not None:
            code = space.times.watch(space.kinds, code)
        if self.recorder is not None:
            code = self.recorder.watch(run, space.kinds, code)
        return self._proceed(space, run, code)

    def _define(self, space: ClientValues, run: Run) -> None:
        say = partial(self.said, run.client)
        define(space, run, self._ready, self._refused, self.engine, self.units is not None, say, self.show)

    def said(self, client: str, text: str, seconds: float | None = None) -> None:
        """What became of a program; with seconds, that it was compiled, or was not."""
        self.say(text)
        if seconds is not None and self.recorder is not None:
            self.recorder.compile(client, seconds, text)

    def _over(self) -> bool:
        """Whether a program is to be left for another client."""
        return self.turn is not None and self.turn.over()

    def _proceed(self, space: ClientValues, run: Run, rest: Code, left: Left | None = None) -> list[Mail]:
        """Execute what is left of a stretch, until its end or until it must wait for other workers."""
        if self.streams is not None:
            self.streams.use(run.client)
        recorder = self.recorder
        if recorder is not None:
            recorder.begin(run.client)
        try:
            if run.client in self.cancellation.gone:
                self._skip(run.client, space, rest if left is None else chain((left[0],), rest))
            elif self.turn is None:
                self._execute(space, rest)
            else:
                self._take_turn(space, rest, self.turn, left)
        except Cancelled:
            return self._proceed(space, run, rest)
        except Preempted as preempted:
            self.preempted[run.client] = (space, run, rest, (preempted.instruction, preempted.resume))
            if recorder is not None:
                recorder.pause(run.client, False)
            return self.collectives.outgoing()
        except Parked as parked:
            parked.__traceback__ = None  # its frames hold the operands, and in a circle itself
            self.parked = (parked, space, run, rest)
            if recorder is not None:
                recorder.pause(run.client, True)
            return self.collectives.outgoing()
        return self._ended(space, run)

    def _ended(self, space: ClientValues, run: Run) -> list[Mail]:
        """What follows from a run that was executed to its end."""
        self.runs += 1
        out = self.collectives.outgoing()
        if run.client in self.cancellation.gone:
            return out
        space.executed += size_of(run)
        if space.executed - space.reported >= REPORT:
            space.reported = space.executed
            out.append(Mail(DISPATCHER, Progress(run.client, space.executed)))
        if space.warnings:
            out += [Mail(DISPATCHER, Note(text, 0, run.client)) for text in space.warnings]
            space.warnings.clear()
        self._answer_run(space, run, out)
        if self.recorder is not None:
            self.recorder.end(run, space.broken)
        if run.forget or run.drops:
            self.counts.forget(space, run)
        return out

    def _answer_run(self, space: ClientValues, run: Run, out: list[Mail]) -> None:
        """What a run's client waits for."""
        behind = self.streams is not None and self.streams.shared  # nobody is to wait for this client's kernels
        for get in run.gets:
            if not behind or not self._fetch_later(run.client, space, get):
                out.append(self._fetch(run.client, space, get))
        if run.ack:
            broken = tuple(id for id in space.broken if type(id) is int)
            done = partial(self._done, run.client, run.serial, broken)
            if behind:
                self.streams.later(run.client, done)
            else:
                self.engine.sync()
                out.append(done())

    def _done(self, client: str, serial: int, broken: tuple[int, ...]) -> Mail:
        return Mail(DISPATCHER, Done(client, serial, broken, self.seconds(client)))

    def _fetch_later(self, client: str, space: ClientValues, get: Fetch) -> bool:
        """Answer a small read when the device has come to it. Whether it can be done so."""
        array, spec = space.table.get(get.id), spec_in(get.spec)
        if array is None or isinstance(array, Broken) or not isinstance(spec, Spec) or spec.nbytes > transfers.INLINE:
            return False
        host = self.streams.to_host(array)
        self.streams.later(client, partial(self._fetched, client, host, get))
        return True

    def _fetched(self, client: str, host: Any, get: Fetch) -> Mail:
        try:
            return transfers.answer(self.engine, self.memory, self.name, client, host, get)
        except ProtocolError as wrong:
            return Mail(client, Failed(get.ticket, "ProtocolError", str(wrong), get.id))

    def _take_turn(self, space: ClientValues, rest: Code, turn: Turn, left: Left | None) -> None:
        """Execute until the end, or until the turn is over. Large kernels and traces look at the clock themselves."""
        if left is not None:
            ins, resume = left
            self._execute(space, (ins,)) if resume is None else self._resume(space, ins, resume)
        for ins in rest:
            if turn.over():
                raise Preempted(ins)
            self._execute(space, chain((ins,), islice(rest, LIGHT - 1)))

    def _resume(self, space: ClientValues, ins: tuple[Any, ...], resume: Callable[[], None]) -> None:
        """Go on with a program that was left between two of its instructions."""
        try:
            resume()
            self._called(space, space.kinds[ins[0]][2], ins)
        except Exception as error:  # as in `_execute`
            self._broken(space, ins, error)

    def go_on(self, client: str) -> list[Mail]:
        """The next turn of a run that was left for another client."""
        return self._proceed(*self.preempted.pop(client))

    def unfinished(self, client: str) -> bool:
        """Whether a run of this client was begun and has not ended."""
        return client in self.preempted or (self.parked is not None and self.parked[2].client == client)

    def resume(self) -> list[Mail]:
        """Go on where the queue stopped for other workers or for clients to come, as far as that can be."""
        out: list[Mail] = []
        if self.absent.held and self.parked is None:
            self.backlog.extendleft(reversed(self.absent.released(self.memory, self.clock)))
            out += self._catch_up()
        while self.parked is not None:
            parked, space, run, rest = self.parked
            if not parked.wait.ready():
                return out + self.collectives.outgoing()
            self.parked = None
            self._settle(space, parked.instruction, parked.wait)
            out += self._proceed(space, run, rest)
            out += self._catch_up()
        return out

    def _catch_up(self) -> list[Mail]:
        """What came while the queue was stopped."""
        out: list[Mail] = []
        turn, self.turn = self.turn, None  # what waited for a client to connect is done at once, in its order
        while self.backlog and self.parked is None:
            message = self.backlog.popleft()
            out += self.run(message) if isinstance(message, Run) else self._handle(Mail(DISPATCHER, message))
        self.turn = turn
        return out

    def _settle(self, space: ClientValues, ins: tuple[Any, ...], wait: PendingCollective) -> None:
        """What a collective gave, into the table."""
        try:
            made = wait.result()
        except Exception as error:  # peers may be gone, or have sent what does not fit
            self._broken(space, ins, error)
            return
        results = space.kinds[ins[0]][2].results if ins else ()
        for id, (spec, array) in by_result(ins, zip(results, made)):
            space.table[id], space.specs[id] = array, spec

    def _ready(self, client: str, definition: KindDef) -> Ready:
        kind = kind_in(definition)
        if kind.row.collective:
            return Ready(kind, partial(self.collectives.begin, client, kind), form=COLLECTIVE)
        if kind.row.loads:
            spaces = self.spaces
            return Ready(kind, lambda *at: transfers.load(self.engine, self.memory, client, spaces[client], kind, at))
        ready = Ready(kind, self.engine.kernel(kind), self.engine.way(kind))
        ready.watched = self.cancellation.watched(client, kind, ready.run)
        return ready

    def _execute(self, space: ClientValues, code: Iterable[tuple[Any, ...]]) -> None:
        table, specs, kinds = space.table, space.specs, space.kinds
        for ins in code:
            try:
                form, kernel, ready = kinds[ins[0]]
                if form == 2:
                    first, second, made = ready.short
                    if specs[ins[2]] is not first or specs[ins[3]] is not second:
                        raise mismatched_operand(ready, ins, specs)
                    table[ins[1]] = kernel(table[ins[2]], table[ins[3]])
                    specs[ins[1]] = made
                elif form == 1:
                    first, made = ready.short
                    if specs[ins[2]] is not first:
                        raise mismatched_operand(ready, ins, specs)
                    table[ins[1]] = kernel(table[ins[2]])
                    specs[ins[1]] = made
                elif form == FREED:
                    table.pop(ins[1], None)
                    specs.pop(ins[1], None)
                elif form == COLLECTIVE:
                    self._collective(space, ready, ins)
                else:
                    for i, spec in zip(ready.tensors, ready.specs):
                        if specs[ins[i]] is not spec and spec is not None:
                            raise mismatched_operand(ready, ins, specs)
                    if ready.large and self.turn is not None and self.turn.over():
                        raise Preempted(ins)
                    if form == TRACE:
                        self._call(space, ready, ins)
                    else:
                        run_general(table, ready, ins)
                        specs.update(by_result(ins, ready.results))
            except Exception as error:  # a kernel may fail in any way; its tensor then carries the cause
                self._broken(space, ins, error)

    def _call(self, space: ClientValues, ready: Any, ins: tuple[Any, ...]) -> None:
        """A call of a trace."""
        if self.failures:
            check_inputs(space.table, ready, ins)
        ready.run(space.table, ins)
        if self.streams is not None:
            self.streams.called(space.client)
        self._called(space, ready, ins)

    def _called(self, space: ClientValues, ready: Any, ins: tuple[Any, ...]) -> None:
        """A call has ended: what there is by it."""
        for i in ready.dies:
            space.specs.pop(ins[i], None)
        space.specs.update(by_result(ins, ready.results))

    def _skip(self, client: str, space: ClientValues, code: Iterable[tuple[Any, ...]]) -> None:
        """Of the work of a client that is gone, only what others may wait for."""
        for ins in code:
            form, _, ready = space.kinds.get(ins[0], (0, None, None))
            self.skipped += form != FREED
            if form != COLLECTIVE or ready is None:
                continue
            group = ready.kind.settings["group"]
            self.begun[group] += 1
            limit = self.cancellation.limit(client, group)
            if limit is not None and self.begun[group] > limit:
                continue
            begin = partial(self._begin, space, ready, ins)
            wait = Unsettled(self.cancellation, client, ready.kind, ins[-1], self.begun[group], begin)
            try:
                self._wait(space, ins, wait)
            except Exception as error:  # as in `_execute`
                self._broken(space, ins, error)

    def _collective(self, space: ClientValues, ready: Any, ins: tuple[Any, ...]) -> None:
        """A collective: begin it, and wait where it does not end at once."""
        self.begun[ready.kind.settings["group"]] += 1
        self._wait(space, ins, self._begin(space, ready, ins))

    def _wait(self, space: ClientValues, ins: tuple[Any, ...], wait: PendingCollective) -> None:
        if not wait.ready():
            raise Parked(ins, wait)
        self._settle(space, ins, wait)

    def _begin(self, space: ClientValues, ready: Any, ins: tuple[Any, ...]) -> PendingCollective:
        """A broken operand still takes part, or the others would wait for it."""
        ids = ins[ready.encoding.inputs]
        operands = [space.table.get(i) for i in ids]
        if any(space.specs.get(i) is not spec for i, spec in zip(ids, ready.specs)):
            wrong = mismatched_operand(ready, ins, space.specs)
            operands = [a if isinstance(a, Broken) else self._failure(str(ready.kind), wrong, ins[-1]) for a in operands]
        return cast(PendingCollective, ready.run(operands, ins[-1]))

    def _broken(self, space: ClientValues, ins: tuple[Any, ...], error: Exception) -> None:
        """Mark the results of a failed instruction; what is made of a broken tensor keeps the first cause."""
        if ins[0] in space.kinds and isinstance(ready := space.kinds[ins[0]][2], Unit):
            error.__traceback__ = error.__context__ = None  # their frames hold all that the unit had made
            chunk = self.quotas.watch(space, iter(ready.chunk), self.engine, self._broken)
            self._execute(space, chunk)  # one by one, so that only what fails is marked
            return
        self.failures += 1
        if ins[0] not in space.kinds:
            return
        ready = space.kinds[ins[0]][2]
        assert not isinstance(ready, ShardedTrace)  # `unfold` has put what it stands for in its place
        causes = [space.table.get(ins[i]) for i in ready.tensors if i < len(ins)]
        for i in ready.dies:
            space.table.pop(ins[i], None)
            space.specs.pop(ins[i], None)
        cause = next((c for c in causes if isinstance(c, Broken)), None)
        if cause is None and isinstance(error, OperandFailed):
            cause = error.cause
        elif cause is None:
            cause = self._failure(str(ready.kind), error, ins[1] if ins[1] > 0 else space.within)
        for id, spec in by_result(ins, ready.results):
            space.table[id], space.specs[id] = cause, spec
            space.broken.append(id)

    def _failure(self, what: str, error: Exception, id: Any) -> Broken:
        if self.engine.poisoned(error):
            # no word of whose kernel it was: all who have values here are told this
            raise Poisoned(f"a kernel failed and spoilt {self.engine.device}: {str(error).splitlines()[0][:200]}")
        return failure_on(f"worker {self.name} ({self.engine.name} on {self.engine.device})", what, error, id)

    def _fetch(self, client: str, space: ClientValues, get: Fetch) -> Mail:
        if self.recorder is None:
            return self._answer(client, space, get)
        began = self.clock()
        answer = self._answer(client, space, get)
        self.recorder.read(client, get.id, getattr(spec_in(get.spec), "nbytes", 0), began)
        return answer

    def _answer(self, client: str, space: ClientValues, get: Fetch) -> Mail:
        try:
            return transfers.answer(self.engine, self.memory, self.name, client, space.table.get(get.id), get)
        except ProtocolError as wrong:
            self.dropped += 1
            return Mail(client, Failed(get.ticket, "ProtocolError", str(wrong), get.id))
        except Exception as error:  # here a device tells of kernels that failed after they were started
            cause = self._failure("reading it", error, get.id)
            return Mail(client, Failed(get.ticket, cause.error, cause.text, cause.tensor))

    def stats(self, whose: Collection[str] | None = None) -> dict[str, Any]:
        """What this worker is and did; with `whose`, of its work only what was these clients'."""
        used, total = self.engine.memory()
        more, seen = self.more(), self.spaces.keys() if whose is None else self.spaces.keys() & set(whose)
        shares = more.setdefault("shares", {})
        for client in seen:
            shares.setdefault(client, {}).update(self.quotas.stats(self.spaces[client], self.engine))
        more["shares"] = {client: share for client, share in shares.items() if whose is None or client in seen}
        counts = self.counts if whose is None else Counts()
        return {
            "engine": self.engine.name, "device": self.engine.device, **counts.totals([self.spaces[c] for c in seen]),
            "bytes": used, "bytes_total": total, "failures": self.failures, "dropped": self.dropped, "runs": self.runs,
            "over_quota": self.quotas.exceeded, "skipped": self.skipped,
            "collectives": dict(self.collectives.ways), "base": self.engine.base, "fell_back": self.engine.fell_back,
            **more,
        }  # fmt: skip
