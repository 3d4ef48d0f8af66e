"""The instruction log: a line for each instruction when the dispatcher receives it, sends it to workers, when a worker has
executed it, and when it is acknowledged. Times are seconds since the log began; execution has the worker's own time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from operator import neg
from typing import Any, NamedTuple

from gt.dispatcher.tables import Client, KindPlans, TracePlans
from gt.ops.collective import kept_by
from gt.ops.table import Kind
from gt.program import Program, wire
from gt.program.code import Encoded, Form, freed_id, is_free, tag_of
from gt.spec import DTYPES, Spec
from gt.transport.checks import kind_in
from gt.transport.events import Spans, State
from gt.transport.messages import Batch, Run
from gt.watch.events import Activity, Free, Move, OpInProgram, ProgramCall, Reader, RunEnd, StretchActivity
from gt.watch.log_events import EventWriter

ARITY = {0: "CreateOp", 1: "UnaryOp", 2: "BinaryOp", 3: "TernaryOp"}
OPERAND_NAMES = {1: ("input",), 2: ("left", "right")}
GONE = 64  # departed clients whose state is still remembered
STALL = 2.0  # seconds without the end of an op after which the op at hand has a line of its own
Line = tuple[float, str]  # time of the event, and the text that follows it


class SentOp(NamedTuple):
    """An op that was sent to a worker."""

    serial: int
    results: tuple[Any, ...]
    text: str


def arity_name(kind: Kind) -> str:
    """The log's name for a kind's arity: all operands of a pointwise op count, only tensor operands of the others."""
    n = len(kind.ins) if kind.row.pointwise else len(kind.tensor_operands)
    return ARITY.get(n, "NaryOp")


def operand(value: Any, spec: Any) -> str:
    """A tensor as its id; a number with its type, to tell it from an id."""
    return str(value) if isinstance(spec, Spec) else f"{spec.__name__}:{value}"


def details(kind: Kind, ins: tuple) -> str:
    """`result=2 op=matmul left=0 right=1`, followed by the statics."""
    form = Form.of(kind)
    operands = [operand(value, spec) for value, spec in zip(ins[form.operands], kind.ins)]
    words = [f"result={','.join(map(str, ins[form.results]))}", f"op={kind.row.name}"]
    names = OPERAND_NAMES.get(len(operands)) if kind.tensor_operands else None
    if names:
        words += [f"{name}={x}" for name, x in zip(names, operands)]
    elif operands:
        words.append(f"inputs={','.join(operands)}")
    words += [f"{k}={DTYPES[v].name if k == 'dtype' else v}".replace(" ", "") for k, v in kind.settings.items()]
    return " ".join(words)


Use = Kind | Program | None  # meaning of an instruction's number


def expanded(code: Iterable[tuple[Use, Encoded]]) -> Iterator[tuple[Kind | None, Encoded]]:
    """Each instruction with its kind (None for a free); calls of traces are expanded. A value that is local to a call has the
    negated number of the program's value in place of an id."""
    for use, ins in code:
        if len(ins) == 2 and is_free(ins):
            yield None, ins
        elif isinstance(use, Program) and len(ins) == Form.of_call(len(use.results), use.inputs, use.holes).length:
            yield from ((op.kind, inner) for op, inner in wire.expand(use, ins, neg) if op is not None)
        elif isinstance(use, Kind) and len(ins) == Form.of(use).length:  # else the client's instruction is invalid
            yield use, ins


def of_client(client: Client, batch: Batch) -> list[tuple[Use, Encoded]]:
    """A batch's instructions with the meaning of their numbers, which the client may have dropped when the log is written."""
    uses = {ins[0]: client.uses.get(ins[0]) for ins in batch.code if ins}  # type: ignore[arg-type]
    known: dict[Any, Use] = {
        n: u.kind if isinstance(u, KindPlans) else u.program if isinstance(u, TracePlans) else None for n, u in uses.items()
    }
    return [(known[ins[0]] if ins else None, ins) for ins in batch.code]


class WorkerDefinitions:
    """The kinds and traces defined on one worker for one client, including the dispatcher's own kinds."""

    def __init__(self) -> None:
        self.known: dict[int, Kind | Program] = {}
        self.forget = 0

    def define(self, run: Run) -> None:
        self.known.update((d.number, kind_in(d)) for d in run.kinds)
        self.known.update((d.number, wire.read(d, self._kind)) for d in run.traces)

    def _kind(self, number: int) -> Kind | None:
        kind = self.known.get(number)
        return kind if isinstance(kind, Kind) else None

    def drop(self, run: Run) -> None:
        """Forget the definitions that the worker drops after this run."""
        if run.forget:
            self.known = {n: meaning for n, meaning in self.known.items() if n >= self.forget}
            self.forget = run.forget
        for number in run.drops:
            self.known.pop(number, None)


class PartsOfCall:
    """The times of a program's instructions as they end. Lines are in the order of the program, in which they were sent: an
    instruction that a worker executes later, such as one fused with others, delays the lines of those behind it."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}
        self.shown, self.last = 0, 0.0

    def end(self, part: ProgramCall, position: int) -> Iterator[float]:
        """The times of the lines that can be written, now that an instruction has ended."""
        self.ends[position] = part.stop
        while self.shown < len(part.ops) and (self.shown in self.ends or not part.ops[self.shown][2]):  # or is unused
            self.last = max(self.last, self.ends.get(self.shown, 0.0)) or part.start
            self.shown += 1
            yield self.last


class InstructionLog:
    """Turns the dispatcher's events (`Observers.local`) into lines with times."""

    def __init__(self) -> None:
        self.received: dict[tuple[str, int], list[str]] = {}  # arities of a batch's instructions, until it is acknowledged
        self.waiting: dict[tuple[str, int], set[str]] = {}  # workers that still execute their part of a batch
        self.sent: dict[tuple[str, str], deque[SentOp]] = {}  # until executed
        self.broken: dict[tuple[str, str], set[int]] = {}  # results that could not be computed, until their lines are written
        self.latest: dict[tuple[str, str], float] = {}  # time of the last send or end, and 0 once a stall is written
        self.definitions: dict[tuple[str, str], WorkerDefinitions] = {}  # by worker and client
        self.readers: dict[tuple[str, str], Reader] = {}
        self.parts: dict[tuple[str, str], PartsOfCall] = {}
        self.gone: dict[str, None] = {}  # departed clients, in the order of departure
        self.events = EventWriter()

    def lines(self, at: float, event: str, who: str, what: Any) -> Iterator[Line]:
        match event:
            case "batch":
                if who in self.gone:  # another session of the same process
                    self._forget(who)
                yield from self._batch(at, who, *what)
            case "run":
                yield from self._run(at, who, *what)
            case "spans":
                yield from self._spans(who, *what)
            case "state":
                yield from self._state(at, who, *what)
            case "event":
                yield from ((at, text(*columns)) for columns in self.events.lines(at, what))
            case "lost":
                self.sent = {key: rest for key, rest in self.sent.items() if key[0] != who}
                self.broken = {key: rest for key, rest in self.broken.items() if key[0] != who}
                for client, serial in [key for key, workers in self.waiting.items() if who in workers]:
                    yield from self._ended(at, who, client, serial)
            case "gone":
                self.gone[who] = None  # workers may still report spans of this client
                if len(self.gone) > GONE:
                    self._forget(next(iter(self.gone)))

    def _forget(self, who: str) -> None:
        """Forget a departed client."""
        del self.gone[who]
        self.events.forget(who)
        self.received = {k: v for k, v in self.received.items() if k[0] != who}
        self.waiting = {k: v for k, v in self.waiting.items() if k[0] != who}
        self.sent = {k: v for k, v in self.sent.items() if k[1] != who}
        self.definitions = {k: v for k, v in self.definitions.items() if k[1] != who}
        self.readers = {k: v for k, v in self.readers.items() if k[1] != who}
        self.broken = {k: v for k, v in self.broken.items() if k[1] != who}
        self.latest = {k: v for k, v in self.latest.items() if k[1] != who}
        self.parts = {k: v for k, v in self.parts.items() if k[1] != who}

    def _batch(self, at: float, who: str, serial: int, code: list[tuple[Use, Encoded]], reads: list[int]) -> Iterator[Line]:
        arities = self.received.setdefault((who, serial), [])
        for kind, ins in expanded(code):
            if kind is None:
                yield at, text("RECV", who, "FreeOp", f"tensor={freed_id(ins)}")
            else:
                arities.append(arity_name(kind))
                yield at, text("RECV", who, arities[-1], details(kind, ins))
        for id in reads:
            arities.append("ReadOp")
            yield at, text("RECV", who, "ReadOp", f"tensor={id}")

    def _run(self, at: float, who: str, client: str, run: Run) -> Iterator[Line]:
        sent = self.sent.setdefault((who, client), deque())
        if not sent:
            self.latest[who, client] = at
        self.waiting.setdefault((client, run.serial), set()).add(who)
        definitions = self.definitions.setdefault((who, client), WorkerDefinitions())
        definitions.define(run)
        code = [(definitions.known.get(int(ins[0])), ins) for ins in run.code if ins]
        for kind, ins in expanded(code):
            if kind is not None:
                ids = ins[Form.of(kind).results]
                result = ",".join(f"{client}_{id}" for id in ids)
                rule = self._rule(client, kind, ins) if kind.row.collective else ""
                sent.append(SentOp(run.serial, ids, f"op={kind.row.name} result={result}{rule}"))
                yield at, text("WORKER_SEND", who, "WorkerOp", sent[-1].text)
        for get in run.gets:
            sent.append(SentOp(run.serial, (), f"op=read result={client}_{get.id}"))
            yield at, text("WORKER_SEND", who, "WorkerOp", sent[-1].text)
        definitions.drop(run)

    def _rule(self, client: str, kind: Kind, ins: tuple[Any, ...]) -> str:
        """For a gather that a rule avoids: its bytes, the client's id of the result that needs it, and the rule."""
        kept, id = kept_by(kind), tag_of(ins)
        if not kept:
            return ""
        self.events.gather(client, id)
        return f" bytes={sum(s.nbytes for s in kind.outs)} for={id} rule={kept}"

    def _spans(self, who: str, client: str, spans: Spans) -> Iterator[Line]:
        reader = self.readers.setdefault((who, client), Reader())
        sent, broken = self.sent.get((who, client), deque()), self.broken.setdefault((who, client), set())
        broken.update(spans.broken)
        for item in reader.read((spans,)):
            match item:
                case OpInProgram(call, position):
                    parts = self.parts.setdefault((who, client), PartsOfCall())
                    for at in parts.end(call, position):
                        yield from self._done(at, who, client, sent, broken, 1)
                case ProgramCall(ops=ops):
                    shown = self.parts.pop((who, client), PartsOfCall()).shown
                    yield from self._done(item.stop, who, client, sent, broken, len(ops) - shown)
                case Free() | StretchActivity():
                    pass
                case Move() | Activity():
                    yield from self._done(item.stop, who, client, sent, broken, 1)
                case RunEnd(_, _, serial, at):
                    left = sum(op.serial <= serial for op in sent)  # instructions that were not timed one by one
                    yield from self._done(at, who, client, sent, broken, left)
                    yield from self._ended(at, who, client, serial)
        if not sent:
            broken.clear()

    def _done(self, at: float, who: str, client: str, sent: deque[SentOp], broken: set[int], count: int) -> Iterator[Line]:
        self.latest[who, client] = at
        for _ in range(min(count, len(sent))):
            failed = [f"{client}_{id}" for id in sent.popleft().results if id in broken]
            result = f"success=False result={','.join(failed)}" if failed else "success=True"
            yield at, text("WORKER_RECV", who, "WorkerOp", result)

    def _state(self, at: float, who: str, client: str, state: State) -> Iterator[Line]:
        """A line for an op that does not end: the first that was sent to its worker and has not ended there."""
        sent, latest = self.sent.get((who, client)), self.latest.get((who, client), 0.0)
        if sent and state.current and latest and at - latest > STALL:
            self.latest[who, client] = 0.0
            yield at, text("STALLED", who, "WorkerOp", f"{sent[0].text} seconds={at - latest:.1f}")

    def _ended(self, at: float, who: str, client: str, serial: int) -> Iterator[Line]:
        workers = self.waiting.get((client, serial))
        if workers is None:
            return
        workers.discard(who)
        if not workers:
            del self.waiting[client, serial]
            for arity in self.received.pop((client, serial), ()):
                yield at, text("SEND", client, arity, "success=True")


def text(event: str, who: str, what: str, details: str) -> str:
    return f"{event:<12} | {who:<15} | {what:<9} | {details}"
