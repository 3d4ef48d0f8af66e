"""The transport of collectives that needs no PyTorch and no shared host: pieces of host memory, by mail between workers."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.backends.facts import host_memory
from gt.errors import ProtocolError
from gt.ops import TABLE, Kind, infer
from gt.spec import DType, Shape, Spec, bool_
from gt.transport.checks import NAME
from gt.transport.messages import Mail, Peer, Piece
from gt.worker.client_values import Broken
from gt.worker.engine import Engine
from gt.worker.peer_names import worker_peer

PIECES = 1 << 18  # most pieces of one peer that wait for collectives here, of each group
WAITING_BYTES = max(1 << 30, host_memory() // 4)  # most bytes of these
REDUCE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
Fill = Callable[[dict[int, Any]], None]  # is called with each source's bytes


class OperandFailed(Exception):
    """A member's operand could not be computed."""

    def __init__(self, cause: Broken) -> None:
        self.cause = cause


def elements(data: Any, spec: Spec) -> np.ndarray:
    """Bytes as an array of opaque elements, which are only moved."""
    return np.frombuffer(data, f"V{spec.dtype.size}", spec.numel).reshape(spec.shape)


class HostArrays:
    """NumPy arrays of opaque elements: see `Arrays`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def moved(self, array: Any, spec: Spec) -> np.ndarray:
        return elements(self.engine.store(array, spec), spec)

    def result(self, array: np.ndarray, spec: Spec) -> Any:
        return self.engine.load(np.ascontiguousarray(array).data.cast("B") if spec.numel else memoryview(b""), spec, True)

    def blank(self, shape: Shape, dtype: DType) -> np.ndarray:
        return np.empty(shape, f"V{dtype.size}")

    def owned(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def reducible(self, array: np.ndarray, dtype: DType) -> tuple[np.ndarray, Callable[[Any], Any]]:
        return array, lambda reduced: reduced

    def contiguous(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array)

    def joined(self, arrays: Sequence[np.ndarray], axis: int = 0) -> np.ndarray:
        return np.concatenate(arrays, axis)

    def as_bytes(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1).view(np.uint8)

    def as_elements(self, data: np.ndarray, shape: Shape, dtype: DType) -> np.ndarray:
        return data.view(f"V{dtype.size}").reshape(shape)


class Mailbox:
    """The sent and received mail of one worker's collectives. All workers begin collectives in the dispatcher's order, so the
    pieces of a worker arrive in order. `group` is the number of the group; 0 for the collectives outside groups."""

    def __init__(self, index: int = -1, group: int = 0) -> None:
        self.limit = WAITING_BYTES
        self.index, self.group = index, group
        self.posts: list[Mail] = []
        self.came: dict[int, deque[tuple[Piece, Any]]] = {}
        self.waiting: Counter[int] = Counter()  # bytes of the pieces of each peer
        self.late: Counter[int] = Counter()  # pieces of given-up collectives that each peer will still send
        self.known: dict[int, Peer] = {}

    def receive(self, piece: Piece, frame: Any) -> None:
        sender = piece.sender
        if self.late[sender]:
            self.late[sender] -= 1
            return
        came = self.came.setdefault(sender, deque())
        if len(came) >= PIECES or len(piece.client) > NAME:
            raise ProtocolError(f"dropped a piece of worker {sender}, of which {len(came)} wait for collectives here")
        why = ""
        if came and self.waiting[sender] + self._size(piece, frame) > self.limit:
            why = f"worker {sender} sent more than {self.limit >> 20} MiB ahead of this worker's collectives"
            piece, frame = Piece(sender, piece.client, piece.tag, why, "RemoteError", within=piece.within), b""
        self.waiting[sender] += self._size(piece, frame)
        came.append((piece, frame))
        if why:  # no collective waits for this piece, and the one that it is for fails with the reason
            raise ProtocolError(why)

    @staticmethod
    def _size(piece: Piece, frame: Any) -> int:
        return memoryview(frame).nbytes + len(piece.why) + len(piece.error)

    def take(self, worker: int) -> tuple[Piece, Any]:
        """The next piece of a worker, which has arrived."""
        piece, frame = self.came[worker].popleft()
        self.waiting[worker] -= self._size(piece, frame)
        return piece, frame

    def give_up(self, sources: list[int]) -> None:
        """Give up a collective. The pieces that its remaining sources will send are ignored."""
        for worker in sources:
            if self.came.get(worker):
                self.take(worker)
            elif worker in self.known:
                self.late[worker] += 1

    def drop_lost(self, living: set[int]) -> None:
        """Drop the pieces of workers that were lost before the last change: results of collectives with them are errors."""
        for worker in self.came.keys() - living - self.known.keys():
            del self.came[worker], self.waiting[worker], self.late[worker]


class MailTransport:
    """The transport of one collective: see `Transport`. A worker whose operand failed sends its `cause` in place of data."""

    way = "mail"

    def __init__(
        self, mailbox: Mailbox, engine: Engine, client: str, kind: Kind, tag: int, cause: Broken | None,
        group: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self.mailbox, self.engine, self.client, self.tag, self.cause = mailbox, engine, client, tag, cause
        self.dtype = kind.outs[0].dtype if kind.outs else None  # of the reduced elements
        self.group: tuple[int, ...] = group or kind.settings["group"]
        self.rank = self.group.index(mailbox.index)
        self.others = [w for w in self.group if w != mailbox.index]

    def reduce(self, whole: np.ndarray, how: str) -> MailWork:
        flat = whole.reshape(-1)

        def fill(frames: dict[int, Any]) -> None:
            flat[...] = self._combined(self._terms(flat, frames), how)

        return self._begin(dict.fromkeys(self.others, flat), self.others, fill)

    def reduce_first(self, whole: np.ndarray, how: str) -> MailWork:
        flat = whole.reshape(-1)

        def fill(frames: dict[int, Any]) -> None:
            flat[...] = self._combined(self._terms(flat, frames), how)

        if self.rank:
            return self._begin({self.group[0]: flat}, [], lambda frames: None)
        return self._begin({}, self.others, fill)

    def gather(self, out: np.ndarray, part: np.ndarray) -> MailWork:
        rows = out.reshape(len(self.group), -1)

        def fill(frames: dict[int, Any]) -> None:
            for row, bytes in zip(rows, self._terms(part, frames)):
                row[...] = bytes

        return self._begin(dict.fromkeys(self.others, part), self.others, fill)

    def spread(self, tensor: np.ndarray) -> MailWork:
        root = self.group[0]
        if self.rank == 0:
            return self._begin(dict.fromkeys(self.others, tensor), [], lambda frames: None)

        def fill(frames: dict[int, Any]) -> None:
            tensor[...] = _like(tensor, frames[root])

        return self._begin({}, [root], fill)

    def swap(self, out: np.ndarray, data: np.ndarray, takes: list[int], sends: list[int]) -> MailWork:
        places = dict(zip(self.group, np.split(out, np.cumsum(takes)[:-1])))
        parts = dict(zip(self.group, np.split(data, np.cumsum(sends)[:-1])))

        def fill(frames: dict[int, Any]) -> None:
            for source, frame in frames.items():
                places[source][...] = _like(places[source], frame)

        sources = [w for w in self.others if len(places[w])]
        return self._begin({w: parts[w] for w in self.others if len(parts[w])}, sources, fill)

    def scatter(self, data: np.ndarray, sizes: list[int], how: str) -> tuple[MailWork, Callable[[], np.ndarray]]:
        parts = np.split(data, np.cumsum(sizes)[:-1])
        terms: list[np.ndarray] = []

        def fill(frames: dict[int, Any]) -> None:
            terms.extend(self._terms(parts[self.rank], frames))

        sends = {w: parts[r] for r, w in enumerate(self.group) if r != self.rank}
        return self._begin(sends, self.others, fill), lambda: self._combined(terms, how)

    def end(self) -> None:
        """Nothing to do: `Mailbox` ignores mail that is no longer needed."""

    def _terms(self, mine: np.ndarray, frames: dict[int, Any]) -> list[np.ndarray]:
        """Every member's array, in the group's order."""
        return [mine if w == self.mailbox.index else _like(mine, frames[w]) for w in self.group]

    def _combined(self, terms: list[np.ndarray], how: str) -> np.ndarray:
        """Reduce with the engine's kernel in the group's order, so that all workers have the same bits."""
        assert self.dtype is not None
        if self.dtype is bool_:
            how = {"sum": "max", "prod": "min"}.get(how, how)
        spec = Spec((len(terms[0]),), self.dtype)
        kernel: Callable = self.engine.kernel(infer(TABLE[REDUCE[how]], (spec, spec), ()))
        arrays = HostArrays(self.engine)
        total = arrays.result(terms[0], spec)
        for term in terms[1:]:
            total = kernel(total, arrays.result(term, spec))
        return arrays.moved(total, spec)

    def _begin(self, sends: dict[int, np.ndarray], sources: list[int], fill: Fill) -> MailWork:
        why = self.cause
        for to, part in sends.items():
            frame = b"" if why else np.ascontiguousarray(part).tobytes()
            reason = (why.text, why.error, why.tensor) if why else ("", "", 0)
            piece = Piece(self.mailbox.index, self.client, self.tag, *reason, self.mailbox.group)
            self.mailbox.posts.append(Mail(worker_peer(to), piece, (frame,)))
        return MailWork(self, sources, fill)


def _like(array: np.ndarray, frame: Any) -> np.ndarray:
    """Received bytes as elements of this array's dtype."""
    return np.frombuffer(frame, array.dtype, len(array))


class MailWork:
    """A collective in progress: done when a piece of each source has arrived. See `Work`."""

    def __init__(self, transport: MailTransport, sources: list[int], fill: Fill) -> None:
        self.transport, self.sources, self.fill = transport, sources, fill

    def done(self) -> bool:
        came = self.transport.mailbox.came
        return all(came.get(w) for w in self.sources)

    def abandon(self, cause: Broken) -> None:
        """Ignore the pieces that have arrived or will arrive. This worker's pieces are already sent."""
        self.transport.mailbox.give_up(self.sources)

    def wait(self) -> None:
        """Read the pieces; raise the cause if a member's operand failed."""
        transport, frames = self.transport, {}
        cause = transport.cause
        for worker in self.sources:
            piece, frames[worker] = transport.mailbox.take(worker)
            if (piece.client, piece.tag) != (transport.client, transport.tag):
                at = f"tensor {piece.tag} of {piece.client}, this one at {transport.tag} of {transport.client}"
                raise ProtocolError(f"expected worker {worker} at the same collective, found it at {at}")
            if piece.why:
                cause = cause or Broken(piece.error, piece.why, piece.tensor)
        if cause:
            raise OperandFailed(cause)
        self.fill(frames)
