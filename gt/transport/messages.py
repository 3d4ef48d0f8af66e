"""Every message there is, and how it is written: typed structs as msgpack arrays. Those between workers stand in
`peer_messages`, those of what is watched in `events`. Tensor bytes travel in frames of their own behind a message. New fields
go last, with a default."""

from __future__ import annotations

from typing import Any

import msgspec

from gt.errors import ProtocolError
from gt.ops.table import Kind, WireSpec, spec_out
from gt.program.code import Encoded
from gt.program.wire import TraceDef
from gt.transport.events import Listen, Seen, Subscribe, Watched, WorkerReport
from gt.transport.message import Message as Message
from gt.transport.peer_messages import Aborted as Aborted
from gt.transport.peer_messages import InputFailed as InputFailed
from gt.transport.peer_messages import Noted as Noted
from gt.transport.peer_messages import Peer as Peer
from gt.transport.peer_messages import Piece as Piece
from gt.transport.peer_messages import Reached as Reached
from gt.transport.peer_messages import StallQuery as StallQuery
from gt.transport.peer_messages import Ways as Ways

VERSION = 6
PRIORITIES = {"normal": 1.0, "interactive": 4.0, "batch": 0.25}  # by what a client's weight is multiplied
WEIGHTS = (0.01, 100.0)  # the least and the most that a client can have
LIMIT = 64 << 20  # bytes of one message, without its frames


class KindDef(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of a kind's number, sent before its first use."""

    number: int
    op: str
    ins: tuple[WireSpec, ...]
    statics: Any
    signal: str = ""


def kind_out(number: int, kind: Kind) -> KindDef:
    return KindDef(number, kind.row.name, tuple(map(spec_out, kind.ins)), kind.statics, kind.signal)


class Hello(Message, frozen=True, tag=1):
    """A client's first word. Here and in Join, `key` is empty: the connection has proved the key, and it is never sent.
    `weight` and `priority` say which share of the workers' time it asks for, `memory` how many bytes it may have on each worker
    at most, 0 for as many as there are. Here and in Join, `lane` is the token that was said on a lane
    to the dispatcher, if there is one."""

    version: int
    key: str
    host: str
    pid: int
    weight: float = 1.0
    priority: str = "normal"
    memory: int = 0
    lane: bytes = b""


class Welcome(Message, frozen=True, tag=2):
    """The dispatcher's answer to a client or a worker: the name or index it goes by, and the workers. To a worker of a
    pool, the users that may connect to it, too: names by their public keys. With `lane` all further messages of a client
    come over its lane, and all further messages to a worker go over its own."""

    name: str
    index: int
    workers: tuple[Peer, ...] = ()
    users: dict[str, str] = {}
    lane: bool = False


class Batch(Message, frozen=True, tag=3):
    """A stretch of a client's stream. `gets` are (ticket, id, spec) to be read after it; `ack` asks for an Ack when it is done;
    kinds below `forget` will not be named again."""

    serial: int
    kinds: tuple[KindDef, ...]
    code: list[Encoded]
    gets: tuple[tuple[int, int, WireSpec], ...] = ()
    ack: bool = False
    forget: int = 0
    traces: tuple[TraceDef, ...] = ()
    drops: tuple[int, ...] = ()  # traces that will not be called again


class Ack(Message, frozen=True, tag=4):
    """All of a client's stream up to this serial has been executed, in so many device seconds since the client came."""

    serial: int
    seconds: float = 0.0


class Failed(Message, frozen=True, tag=5):
    """A read that has no value. `error` names a class of gt.errors; `tensor` is the id where it began, 0 if unknown."""

    ticket: int
    error: str
    text: str
    tensor: int = 0


class Peers(Message, frozen=True, tag=6):
    """The workers there are, whenever that changes."""

    workers: tuple[Peer, ...]
    lost: str = ""


class Ask(Message, frozen=True, tag=7):
    """A question about the system: "stats", "placement", ... Answered by whoever knows, under the same ticket."""

    ticket: int
    about: str
    argument: Any = None


class Answer(Message, frozen=True, tag=8):
    ticket: int
    value: Any


class Configure(Message, frozen=True, tag=9):
    """A client's signal configuration."""

    signals: dict[str, Any]


class Bye(Message, frozen=True, tag=10):
    """The sender goes, of its own will."""

    why: str = ""


class Join(Message, frozen=True, tag=11):
    """A worker's first word; `address` and `remote` are as in Peer, `release` is its version of GT."""

    version: int
    key: str
    name: str
    backend: str
    device: str
    host: str
    pid: int
    address: str
    remote: str = ""
    release: str = ""
    lane: bytes = b""


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a tensor that a worker sends to a client: where it begins in the whole, and how many pieces there are."""

    ticket: int
    id: int
    spec: WireSpec
    start: tuple[int, ...]
    whole: tuple[int, ...]
    pieces: int = 1


class Run(Message, frozen=True, tag=12):
    """A stretch of the stream, rewritten for one worker. Ids and kinds are the client's; below zero, the dispatcher's."""

    client: str
    serial: int
    kinds: tuple[KindDef, ...]
    code: list[Encoded]
    gets: tuple[Fetch, ...] = ()
    ack: bool = False
    forget: int = 0
    traces: tuple[TraceDef, ...] = ()
    drops: tuple[int, ...] = ()


def size_of(run: Run) -> int:
    """Its share of the bound on a client's work in flight."""
    return 1 + len(run.code) + len(run.gets)


class Done(Message, frozen=True, tag=13):
    """A worker has executed a client's Run; these of its results could not be made. `seconds` is the device time that the
    client has had there in all. Of a Run that asks for no word, only such results are told, with 0 for its serial."""

    client: str
    serial: int
    broken: tuple[int, ...] = ()
    seconds: float = 0.0


class Drop(Message, frozen=True, tag=14):
    """A client is gone: forget all its tensors and kinds. A worker answers a Drop with a number by Begun."""

    client: str
    number: int = 0


class Attach(Message, frozen=True, tag=15):
    """A client's first word to a worker. It has said `token` on a connection that passes segments, if it has one: then they
    share memory. `lane` is the token that was said on a lane over which small answers are to come."""

    client: str
    token: bytes = b""
    lane: bytes = b""


class Attached(Message, frozen=True, tag=16):
    """A worker's answer to Attach. To the dispatcher: this client has connected to it."""

    worker: int
    shares: bool
    client: str = ""


class Value(Message, frozen=True, tag=17):
    """A piece of a tensor: a small one in `data`, a large one in the frame behind, or in a segment of the worker's where
    `place` is given."""

    ticket: int
    spec: WireSpec
    start: tuple[int, ...]
    whole: tuple[int, ...]
    pieces: int
    place: tuple[int, int, int] | None = None  # number of the segment, offset in it, bytes there
    data: bytes = b""


class Release(Message, frozen=True, tag=18):
    """A shared segment that may be written again by its owner."""

    segment: int


class Upload(Message, frozen=True, tag=19):
    """To a client: send the bytes of tensor `id` to these workers, to each its piece (where it begins, its shape). To a
    worker, from a client: here they are."""

    client: str
    id: int
    spec: WireSpec
    workers: tuple[int, ...] = ()
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


class Arrived(Message, frozen=True, tag=20):
    """A worker has the bytes of an upload."""

    client: str
    id: int


class Note(Message, frozen=True, tag=21):
    """Something the user of a client should know, about one of its tensors if `tensor` is given."""

    text: str
    tensor: int = 0
    client: str = ""  # from a worker: whom it concerns


class Store(Message, frozen=True, tag=23):
    """How a worker is reached in groups; all others are told."""

    reached: Reached


Counts = tuple[tuple[tuple[int, ...], int], ...]  # of each set of workers, how many of their collectives


class Begun(Message, frozen=True, tag=29):
    """From a worker, to the Drop of this number: how many collectives it has begun. Of those of that client it begins no other
    until all are told which of them some worker has begun."""

    number: int
    counts: Counts


class Skip(Message, frozen=True, tag=30):
    """To a worker: no worker has begun more collectives than these. What comes behind them and is of the client of the Drop of
    this number is carried out by none."""

    number: int
    counts: Counts


class Refuse(Message, frozen=True, tag=31):
    """From a worker: it does nothing more for a client, and the dispatcher should let it go."""

    client: str
    why: str


class Progress(Message, frozen=True, tag=32):
    """From a worker, now and then: how much of a client's work it has done, by `size_of` its runs."""

    client: str
    done: int


class Drain(Message, frozen=True, tag=33):
    """From a worker: it is to leave, and asks for its tensors to be moved elsewhere. A Bye is the answer: when all that came
    before is done it may go. `why` says what could not be moved."""


class Came(Message, frozen=True, tag=34):
    """To a worker: a client has come, which share it has where clients take turns, and the bytes that it and all clients of its
    user together may have here, 0 for any. `user` is "" where users have no keys of their own."""

    client: str
    weight: float = 1.0
    memory: int = 0
    user: str = ""
    user_weight: float = 1.0
    user_memory: int = 0


Any_ = (
    Hello | Welcome | Batch | Ack | Failed | Peers | Ask | Answer | Configure | Bye | Join | Run | Done | Drop | Attach
    | Attached | Value | Release | Upload | Arrived | Note | Piece
    | Store | InputFailed | StallQuery | Noted | Ways | Aborted | Begun | Skip | Refuse | Progress | Drain | Came
    | Subscribe | Listen | WorkerReport | Watched | Seen
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Any_)
encode = _encoder.encode


def decode(data: bytes | memoryview, limit: int = LIMIT) -> Any:
    """The message these bytes hold, or a ProtocolError."""
    if len(data) > limit:
        raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {limit}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:  # a ValueError: text that is not UTF-8
        raise ProtocolError(str(wrong)) from wrong


class Mail(msgspec.Struct, frozen=True):
    """A message with its receiver (or sender) and its frames of bytes. `role` is that of the sender's key, if it has one."""

    peer: str
    message: Any
    frames: tuple[Any, ...] = ()
    role: str = ""
