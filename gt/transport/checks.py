"""Checks of received messages before they are handled: counts, depths, sizes, specs and names. A message above a limit that no
GT client reaches disconnects its sender; any other fault fails only the faulty part."""

from __future__ import annotations

import math
import re
from array import array
from functools import lru_cache
from typing import Any

import msgspec

from gt.errors import ProtocolError
from gt.ops.table import PRECISIONS, Kind, arity, freeze, infer, row, spec_in
from gt.program.code import is_free
from gt.program.wire import TraceDef
from gt.spec import RANK, Spec
from gt.transport.events import (
    COLUMN,
    EXACT,
    REPORTED,
    Compiled,
    Event,
    Lines,
    Loaded,
    Meaning,
    Spans,
    State,
    Subscribe,
    Traced,
    Waited,
    WorkerReport,
)  # fmt: skip
from gt.transport.messages import PRIORITIES, WEIGHTS, Ask, Batch, Configure, Hello, Join, KindDef, Note, Reached, Store

MESSAGE = 8 << 20  # bytes of a client's message; decoding takes up to thirty times as much for a moment
CODE = 1 << 16  # instructions of a batch: other clients wait while it is planned
READS = 1 << 12  # reads of a batch
DEFERRED = 1 << 12  # instructions of a deferred batch
DEFINITIONS = 1 << 15  # kinds of a batch
TRACES = 1 << 10  # traces of a batch
BODY = 1 << 17  # instructions in the traces of a batch
TRACE = 1 << 14  # ops of one trace, as many as a client of ours records: a worker prepares it as a whole
TRACED = 1 << 21  # instructions in all traces of a client, as many as a client of ours may keep at a time
AHEAD = 1 << 16  # unexecuted instructions and reads of a client on a worker, above which the client's batches are held back
QUESTIONS = 1 << 8  # unanswered questions of a client to workers
HELD = 1 << 20  # instructions of a client that wait for a worker or for bytes
DEFINED = 1 << 20  # operands in all kinds of a batch
KNOWN = 1 << 18  # kinds and traces of a client
LONG = 32  # operands and settings of a kind, or values of a trace's instruction, that count as one more
TENSORS = 1 << 22  # tensors of a client
OPERANDS = 1 << 14  # operands of a kind, and results
DEPTH = 8  # depth of nested values
ITEMS = 1 << 16  # values within a value
TEXT = 1 << 12  # characters of a text within a value
NAME = 256  # characters of a name
SIGNALS = 1 << 10
SHORT = 256  # bytes of a definition whose meaning is kept
KEPT = 1 << 11  # most such definitions
_encode, _decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(KindDef).decode


class TooMuch(ProtocolError):
    """A message above the limits of GT's clients: its sender is disconnected."""


def message(found: Any) -> None:
    """Raise if a count or size of the message is above its limit."""
    match found:
        case Batch():
            batch(found)
        case Ask(about=about, argument=argument):
            _name(about, "a question")
            plain(argument, "a question's argument")
        case Configure(signals):
            _bounded(len(signals), SIGNALS, "signals", TooMuch)
            plain(signals, "signals", tables=True)
        case Hello(host=host, weight=weight, priority=priority, memory=memory):
            _name(host, "a host")
            _share(weight, priority)
            if not 0 <= memory < 1 << 63:
                raise ProtocolError(f"invalid memory quota of {memory} bytes: expected 0 or more")
        case Join():
            for text in (found.name, found.backend, found.device, found.host, found.address, found.remote):
                _name(text, "the fields of a worker's Join")
        case Store(at):
            reached(at)
        case Note(text):
            _bounded(len(text), TEXT, "characters of a note")
        case WorkerReport(events):
            _bounded(len(events), REPORTED, "events of a report")
            for event in events:
                reported(event)
        case Subscribe(_, level, client):
            _name(client, "a client")
            if not 0 <= level <= EXACT:
                raise ProtocolError(f"invalid level {level}: expected 0 to {EXACT}")


def batch(batch: Batch) -> None:
    """Raise if a count or size of a batch is above its limit."""
    if batch.serial.bit_length() > 63:
        raise ProtocolError(f"invalid serial {batch.serial} of a batch: expected an integer of 64 bits")
    if len(batch.code) > CODE:
        raise TooMuch(f"a batch of {len(batch.code)} instructions: the most are {CODE}")
    if len(batch.gets) > READS or len(batch.kinds) > DEFINITIONS or len(batch.traces) > TRACES:
        counts = f"{len(batch.gets)} reads, {len(batch.kinds)} kinds, {len(batch.traces)} traces"
        raise TooMuch(f"a batch of {counts}: the most are {READS}, {DEFINITIONS} and {TRACES}")
    if batch.deferred is not None and not 0 <= batch.deferred <= len(batch.code) <= DEFERRED:
        raise ProtocolError(
            f"a deferred batch of {len(batch.code)} instructions and {batch.deferred} loads: the most are {DEFERRED}"
        )
    if batch.drops:
        _bounded(len(batch.drops), KNOWN, "dropped traces", TooMuch)
    if batch.kinds:
        _bounded(sum(len(k.ins) for k in batch.kinds), DEFINED, "operands in the kinds of a batch", TooMuch)
    if batch.traces:
        _bounded(sum(map(length, batch.traces)), BODY, "instructions in the traces of a batch", TooMuch)
        for trace in batch.traces:
            if len(trace.body) > TRACE:
                _bounded(len(trace.body) - sum(map(is_free, trace.body)), TRACE, "ops of a trace", TooMuch)


def length(trace: TraceDef) -> int:
    """The number of instructions of a trace; a long instruction counts as several."""
    lengths = [*map(len, trace.body)]
    return len(lengths) if max(lengths, default=0) < LONG else sum([1 + n // LONG for n in lengths])


def size(kind: KindDef) -> int:
    """The number of kinds as which this one counts: a kind with many operands and settings counts as several."""
    return 1 + (len(kind.ins) + plain(kind.statics, "statics")) // LONG


def _bounded(found: int, most: int, what: str, error: type[ProtocolError] = ProtocolError) -> None:
    if found > most:
        raise error(f"{found} {what}: the most are {most}")


def _share(weight: float, priority: str) -> None:
    if not WEIGHTS[0] <= weight <= WEIGHTS[1]:
        raise ProtocolError(f"invalid weight {weight}: expected {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
    if priority not in PRIORITIES:
        raise ProtocolError(f"unknown priority {priority[:NAME]!r}: expected one of {', '.join(PRIORITIES)}")


def _name(text: str, what: str) -> None:
    if len(text) > NAME or not text.isprintable():
        raise ProtocolError(f"{what}: expected at most {NAME} printable characters, got {text[:NAME]!r}")


def _meaning(meaning: Meaning) -> None:
    _bounded(len(meaning.ops), REPORTED, "ops of a program")
    named = (meaning.name, meaning.group, meaning.signal, meaning.rule)
    for text in (*named, *(t for op in meaning.ops for t in op[:2])):
        _name(text, "a name in a report")


def reported(event: Event) -> None:
    """Check an event before observers receive it: columns of one length, printable texts."""
    match event:
        case Spans(_, numbers, ids, starts, seconds):
            rows = len(seconds) // 4
            _bounded(len(starts), COLUMN, "bytes of a column")
            if (len(numbers), len(ids), len(starts), len(seconds)) != (8 * rows, 8 * rows, 8 * rows, 4 * rows):
                raise ProtocolError("columns of different lengths")
            if not math.isfinite(sum(array("d", starts)) + sum(array("f", seconds))):
                raise ProtocolError("a column of times: expected finite seconds")
            _bounded(len(event.meanings), DEFINITIONS, "meanings of a report")
            for meaning in event.meanings:
                _meaning(meaning)
        case Lines(_, ids, lines, table, sent):
            _bounded(len(ids), COLUMN, "bytes of a column")
            if len(ids) != 4 * len(lines) or len(ids) % 8:
                raise ProtocolError("columns of different lengths")
            _bounded(len(table), 1 << 16, "lines of a report")
            _bounded(len(sent), REPORTED, "batches of a report")
            _times(*(at for _, at in sent))
            for line in table:
                _name(line, "a line")
        case Waited(_, at, seconds, line, nbytes) | Loaded(_, at, seconds, line, nbytes):
            _name(line, "a line")
            _times(at, seconds)
            _counts(nbytes, event.count if isinstance(event, Waited) else 0)
            _name(event.digest if isinstance(event, Loaded) else "", "a digest")
        case Traced(_, at, found, hits, saved, misses):
            _times(at)
            _counts(found, hits, saved, *(n for _, n, _ in misses))
            _bounded(len(misses), REPORTED, "reasons")
            for why, _, line in misses:
                _name(why, "a reason")
                _name(line, "a line")
        case Compiled(text=text, line=line):
            _bounded(len(text), TEXT, "characters of an event")
            _name(line, "a line")
        case State(current=current, stack=stack):
            _bounded(len(current) + len(stack), 4 * TEXT, "characters of an event")


def _times(*seconds: float) -> None:
    """Raise unless these are finite seconds."""
    for each in seconds:
        if not -1e12 < each < 1e12:
            raise ProtocolError(f"invalid time: expected finite seconds, got {each}")


def _counts(*found: int) -> None:
    for each in found:
        if not 0 <= each < 1 << 62:
            raise ProtocolError(f"invalid count: expected 0 or more, got {each}")


OFFER = re.compile(r"(\d{1,10} \d{1,10} \d{1,20} [0-9a-f]{32})?")  # a process, a pipe, and a secret with its place there


def reached(at: Reached) -> None:
    """Check the addresses of a worker in groups: each field is well-formed or empty."""
    _name(at.gpu, "a GPU")
    host, _, port = at.store.rpartition(":")
    keeps = host and port.isdecimal() and int(port) < 1 << 16 and len(at.store) <= NAME and at.store.isprintable()
    if at.store and not keeps or not OFFER.fullmatch(at.memory):
        raise ProtocolError(f"invalid addresses of a worker: store {at.store[:NAME]!r}, memory {at.memory[:NAME]!r}")


def plain(value: Any, what: str, depth: int = DEPTH, tables: bool = False) -> int:
    """The number of values within a value; raises if there are too many, too deep, or of a type that is not sent."""
    if value is None or isinstance(value, (bool, float)):
        return 1
    if isinstance(value, int):
        if not -(1 << 63) <= value < 1 << 63:
            raise ProtocolError(f"{what}: {value} does not fit into 64 bits")
        return 1
    if isinstance(value, str):
        _bounded(len(value), TEXT, f"characters in {what}")
        return 1
    if isinstance(value, dict) and tables:
        return plain([x for pair in value.items() for x in pair], what, depth, tables)
    if not isinstance(value, (list, tuple)):
        raise ProtocolError(f"{what}: unexpected {type(value).__name__}")
    if depth == 0:
        raise ProtocolError(f"{what}: values are nested more than {DEPTH} deep")
    _bounded(len(value), ITEMS, f"values in {what}")
    count = 1
    for each in value:
        count += plain(each, what, depth - 1, tables)
        _bounded(count, ITEMS, f"values in {what}")
    return count


def spec(wire: Any) -> Any:
    """The spec, or the type of a number, of its wire form."""
    if len(wire) > 1 + RANK:
        raise ProtocolError(f"expected a tensor of at most {RANK} axes, got {len(wire) - 1}")
    try:
        return spec_in(tuple(wire))
    except (ValueError, TypeError) as wrong:
        raise ProtocolError(str(wrong)) from wrong


def kind_in(definition: KindDef) -> Kind:
    """The kind of a definition. Its shapes are inferred again, so that a false definition is found here. Clients of one program
    define the same kinds: the last short definitions are kept, by their bytes, as 1, 1.0 and True are equal."""
    try:
        key = _encode(msgspec.structs.replace(definition, number=0))
    except (OverflowError, TypeError, RecursionError):  # no message, but a definition made here: the checks name its fault
        return _kind(definition)
    return _known(key) if len(key) <= SHORT else _kind(definition)


@lru_cache(KEPT)
def _known(encoded: bytes) -> Kind:
    return _kind(_decode(encoded))


def _kind(definition: KindDef) -> Kind:
    r = row(definition.op)
    plain(definition.statics, f"the statics of {r}")
    statics = freeze(definition.statics)
    if not isinstance(statics, tuple) or len(statics) != len(r.statics):
        raise ProtocolError(f"{r} expected statics {r.statics}, got {statics}")
    least, most = arity(r)
    if len(definition.ins) < least or (most is not None and len(definition.ins) > most):
        raise ProtocolError(f"{r} expected {least} operands, got {len(definition.ins)}")
    _bounded(len(definition.ins), OPERANDS, f"operands of {r}")
    _name(definition.signal, "a signal")
    if definition.precision and definition.precision not in PRECISIONS:
        raise ProtocolError(f"{r} expected a precision of {', '.join(PRECISIONS)}, got {definition.precision[:20]!r}")
    try:
        kind = infer(r, tuple(map(spec, definition.ins)), statics, definition.signal, definition.precision)
    except ProtocolError:
        raise
    except Exception as wrong:  # a shape rule may fail on operands that no user can write
        raise ProtocolError(f"invalid use of {r}: {type(wrong).__name__}: {wrong}") from wrong
    _bounded(len(kind.outs), OPERANDS, f"results of {r}")
    for out in kind.outs:
        if not isinstance(out, Spec):
            raise ProtocolError(f"{r} cannot give a result of {out}")
    return kind
