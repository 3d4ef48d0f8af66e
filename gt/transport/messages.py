"""All messages, typed structs encoded as msgpack arrays. Messages between workers are in `peer_messages`, those for observers
in `events`. Tensor bytes are sent in frames of their own after a message. New fields go last, with a default."""

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

VERSION = 10
PRIORITIES = {"normal": 1.0, "interactive": 4.0, "batch": 0.25}  # factors of a client's weight
WEIGHTS = (0.01, 100.0)  # the lowest and the highest weight of a client
LIMIT = 64 << 20  # bytes of one message, without its frames


class KindDef(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of a kind's number, sent before its first use."""

    number: int
    op: str
    ins: tuple[WireSpec, ...]
    statics: Any
    signal: str = ""
    precision: str = ""  # of float32 in a matrix product; "" is the highest


def kind_out(number: int, kind: Kind) -> KindDef:
    return KindDef(number, kind.row.name, tuple(map(spec_out, kind.ins)), kind.statics, kind.signal, kind.precision)


class Hello(Message, frozen=True, tag=1):
    """A client's first message. Here and in Join, `key` is empty: the connection has proved the key, and it is never sent.
    `weight` and `priority` determine the client's share of the workers' time, `memory` is the most bytes that it may have on
    each worker, 0 for no limit. Here and in Join, `lane` is the token of a lane to the dispatcher, if there is one."""

    version: int
    key: str
    host: str
    pid: int
    weight: float = 1.0
    priority: str = "normal"
    memory: int = 0
    lane: bytes = b""


class Welcome(Message, frozen=True, tag=2):
    """The dispatcher's answer to a client or a worker: its name or index, and the workers. For a worker of a pool also the
    users that may connect to it: names by their public keys. With `lane` all further messages of a client arrive over its lane,
    and all further messages to a worker are sent over its lane."""

    name: str
    index: int
    workers: tuple[Peer, ...] = ()
    users: dict[str, str] = {}
    lane: bool = False


class Batch(Message, frozen=True, tag=3):
    """Instructions of a client. `gets` are reads (ticket, id, spec) after these instructions; `ack` requests an Ack when they
    are executed; kinds below `forget` will not be used again. A `deferred` batch is executed when its worker receives its
    Start: it begins with so many loads, whose places are in the Start."""

    serial: int
    kinds: tuple[KindDef, ...]
    code: list[Encoded]
    gets: tuple[tuple[int, int, WireSpec], ...] = ()
    ack: bool = False
    forget: int = 0
    traces: tuple[TraceDef, ...] = ()
    drops: tuple[int, ...] = ()  # traces that will not be called again
    deferred: int | None = None


class Ack(Message, frozen=True, tag=4):
    """All instructions of a client up to this serial are executed, in `seconds` of device time since the session began."""

    serial: int
    seconds: float = 0.0


class Failed(Message, frozen=True, tag=5):
    """A read that failed. `error` names a class of gt.errors; `tensor` is the id of the tensor that failed first, 0 if
    unknown."""

    ticket: int
    error: str
    text: str
    tensor: int = 0


class Peers(Message, frozen=True, tag=6):
    """The connected workers, sent at each change."""

    workers: tuple[Peer, ...]
    lost: str = ""


class Ask(Message, frozen=True, tag=7):
    """A question about the system: "stats", "placement", ... The answer has the same ticket. Anybody whose key was admitted may
    ask whether a worker has "joined"; the other questions are clients'."""

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
    """The sender disconnects."""

    why: str = ""


class Join(Message, frozen=True, tag=11):
    """A worker's first message; `address`, `remote` and `small` are as in Peer, `release` is its version of GT."""

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
    small: bool = False


class Fetch(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a tensor that a worker sends to a client: its offset in the whole tensor, and the number of pieces."""

    ticket: int
    id: int
    spec: WireSpec
    start: tuple[int, ...]
    whole: tuple[int, ...]
    pieces: int = 1


class Run(Message, frozen=True, tag=12):
    """Instructions of a client, rewritten for one worker. Ids and kinds are the client's; below zero, the dispatcher's.
    `deferred` is that of its batch."""

    client: str
    serial: int
    kinds: tuple[KindDef, ...]
    code: list[Encoded]
    gets: tuple[Fetch, ...] = ()
    ack: bool = False
    forget: int = 0
    traces: tuple[TraceDef, ...] = ()
    drops: tuple[int, ...] = ()
    deferred: int | None = None


class Start(Message, frozen=True, tag=36):
    """From a client to a worker, over the lane for its answers: execute the deferred run of the batch of this serial, with
    these places (segment, offset, length) of its loads."""

    serial: int
    places: tuple[tuple[int, int, int], ...] = ()


def size_of(run: Run) -> int:
    """The part of the bound on a client's work in flight that this message takes."""
    return 1 + len(run.code) + len(run.gets)


class Done(Message, frozen=True, tag=13):
    """A worker has executed a client's Run, without these results, which could not be computed. `seconds` is the client's
    device time on this worker in all. For a Run without `ack` only failed results are reported, with serial 0."""

    client: str
    serial: int
    broken: tuple[int, ...] = ()
    seconds: float = 0.0


class Drop(Message, frozen=True, tag=14):
    """A client has ended: forget all its tensors and kinds. A worker answers a numbered Drop with Begun."""

    client: str
    number: int = 0


class Attach(Message, frozen=True, tag=15):
    """A client's first message to a worker. `token` is that of a channel for segments, if there is one: then they share memory.
    `lane` is the token of a lane for small answers."""

    client: str
    token: bytes = b""
    lane: bytes = b""


class Attached(Message, frozen=True, tag=16):
    """A worker's answer to Attach. To the dispatcher: this client has connected to the worker."""

    worker: int
    shares: bool
    client: str = ""


class Value(Message, frozen=True, tag=17):
    """A piece of a tensor: a small one in `data`, a large one in the next frame, or at `place` in a segment of the worker."""

    ticket: int
    spec: WireSpec
    start: tuple[int, ...]
    whole: tuple[int, ...]
    pieces: int
    place: tuple[int, int, int] | None = None  # number of the segment, offset in it, bytes
    data: bytes = b""


class SmallValues(Message, frozen=True, tag=35):
    """Several small answers of one run, each with its bytes in `data`."""

    values: tuple[Value, ...]


class Release(Message, frozen=True, tag=18):
    """A shared segment that its owner may write again."""

    segment: int


class Upload(Message, frozen=True, tag=19):
    """To a client: send the bytes of tensor `id` to these workers, to each its piece (offset, shape). To a worker, from a
    client: the bytes."""

    client: str
    id: int
    spec: WireSpec
    workers: tuple[int, ...] = ()
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()


class Arrived(Message, frozen=True, tag=20):
    """A worker has received the bytes of an upload."""

    client: str
    id: int


class Note(Message, frozen=True, tag=21):
    """A notice for the user of a client, about one of its tensors if `tensor` is given."""

    text: str
    tensor: int = 0
    client: str = ""  # from a worker: the client concerned


class Store(Message, frozen=True, tag=23):
    """The addresses of a worker in groups, which all other workers receive."""

    reached: Reached


Counts = tuple[tuple[tuple[int, ...], int], ...]  # for each set of workers, the number of their collectives


class Begun(Message, frozen=True, tag=29):
    """A worker's answer to the Drop of this number: how many collectives it has begun. It begins no further collectives of that
    client until the dispatcher has sent which of them some worker has begun."""

    number: int
    counts: Counts


class Skip(Message, frozen=True, tag=30):
    """To a worker: no worker has begun more collectives than these. No worker executes later collectives of the client of the
    Drop of this number."""

    number: int
    counts: Counts


class Refuse(Message, frozen=True, tag=31):
    """From a worker: it executes nothing more for a client, and the dispatcher should disconnect the client."""

    client: str
    why: str


class Progress(Message, frozen=True, tag=32):
    """From a worker, now and then: how much of a client's work it has executed, by `size_of` its runs."""

    client: str
    done: int


class Drain(Message, frozen=True, tag=33):
    """From a worker: it will leave, and requests that its tensors are moved to other workers. The answer is a Bye: once all
    earlier messages are handled the worker may end. `why` names the tensors that could not be moved."""


class Came(Message, frozen=True, tag=34):
    """To a worker: a client has connected, with its weight where clients take turns, and the most bytes of the client and of
    all clients of its user on this worker, 0 for no limit. `user` is "" if users have no keys of their own. The kernels of an
    `interactive` client go first on a device that knows priorities."""

    client: str
    weight: float = 1.0
    memory: int = 0
    user: str = ""
    user_weight: float = 1.0
    user_memory: int = 0
    interactive: bool = False


Any_ = (
    Hello | Welcome | Batch | Ack | Failed | Peers | Ask | Answer | Configure | Bye | Join | Run | Done | Drop | Attach
    | Attached | Value | SmallValues | Release | Upload | Arrived | Note | Piece
    | Store | InputFailed | StallQuery | Noted | Ways | Aborted | Begun | Skip | Refuse | Progress | Drain | Came | Start
    | Subscribe | Listen | WorkerReport | Watched | Seen
)  # fmt: skip

ANSWERS = (Value, SmallValues)  # types of messages with values for a client

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Any_)
encode = _encoder.encode


def decode(data: bytes | memoryview, limit: int = LIMIT) -> Any:
    """The decoded message. Raises ProtocolError if it is invalid."""
    if len(data) > limit:
        raise ProtocolError(f"a message of {len(data)} bytes is over the limit of {limit}")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:  # a ValueError: text that is not UTF-8
        raise ProtocolError(str(wrong)) from wrong


class Mail(msgspec.Struct, frozen=True):
    """A message with its receiver (or sender) and its frames. `role` is the role of the sender's key, if it has one."""

    peer: str
    message: Any
    frames: tuple[Any, ...] = ()
    role: str = ""
