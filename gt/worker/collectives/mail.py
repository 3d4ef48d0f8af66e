"""What workers do together. `MailCollectives` does it by mail between them, in pieces of host memory: the way of the in-process
cluster, and of workers without PyTorch. It never blocks: a collective is begun, and ends when all its mail is there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from gt.errors import ProtocolError, RemoteError, WorkerLost
from gt.ops import TABLE, Kind, infer
from gt.spec import Shape, Spec, bool_, split
from gt.transport.messages import Aborted, InputFailed, Mail, Noted, Peer, Piece, StallQuery, Store, Ways
from gt.worker.client_values import Broken
from gt.worker.engine import Engine

NO_STORE = "none"  # what a worker without PyTorch offers to groups
Members = tuple[int, ...]
REDUCE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}


class OperandFailed(Exception):
    """What a collective gives where a part of it could not be made."""

    def __init__(self, cause: Broken) -> None:
        self.cause = cause


def failed_operand(operands: list[Any], tag: int) -> Broken | None:
    """Why a worker has no part to give, if it has none."""
    if any(a is None for a in operands):
        return Broken("RemoteError", "a tensor is missing", tag)
    return next((a for a in operands if isinstance(a, Broken)), None)


class PendingCollective(Protocol):
    """A collective under way."""

    tag: int

    @property
    def kind(self) -> Kind: ...

    def ready(self) -> bool: ...
    def result(self) -> list[Any]:
        """Its outputs, or the error that keeps them from being."""

    def ask(self) -> None:
        """Find out who is missing, since it takes long."""

    def missing(self) -> list[int]:
        """The workers that are not there yet, as far as is known."""

    def give_up(self, why: str) -> None:
        """It has waited too long: it ends, with this as its error."""


class Collectives(Protocol):
    """How a worker reaches the others. `ways` counts its collectives by how their bytes went."""

    index: int
    ways: Counter[str]

    @property
    def peers(self) -> dict[int, Peer]:
        """The workers there are, this one among them."""

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> PendingCollective: ...
    def meet(self, workers: tuple[Peer, ...], lost: str) -> None:
        """Who else is there; whoever is not any more will send nothing."""

    def from_peer(self, peer: str, sender: int) -> bool:
        """Whether mail from this peer is that worker's."""

    def receive(self, piece: Piece, frame: Any) -> None: ...
    def hear(self, word: InputFailed | StallQuery | Noted | Ways | Aborted) -> None: ...
    def outgoing(self) -> list[Mail]:
        """What is to be sent."""


def worker_peer(index: int) -> str:
    """The name under which mail goes to a worker."""
    return f"#{index}"


def is_worker_peer(peer: str, sender: int) -> bool:
    return peer == worker_peer(sender)


def elements(data: Any, spec: Spec) -> np.ndarray:
    """Bytes as an array of elements that are only moved, never computed with."""
    return np.frombuffer(data, f"V{spec.dtype.size}", spec.numel).reshape(spec.shape)


def cut(array: np.ndarray, start: Shape, shape: Shape) -> np.ndarray:
    box: Any = (*[slice(s, s + d) for s, d in zip(start, shape)], ...)
    return array[box]


class MailCollectives:
    """Collectives by mail. Everyone begins them in the dispatcher's order, so what comes from a worker comes in order too."""

    def __init__(self, engine: Engine, announces: bool = False) -> None:
        self.engine, self.index, self.announces = engine, -1, announces
        self.posts: list[Mail] = []
        self.came: dict[int, deque[tuple[Piece, Any]]] = {}
        self.late: Counter[int] = Counter()  # pieces still to come from each, of collectives that were given up
        self.known: dict[int, Peer] = {}
        self.lost = ""
        self.ways: Counter[str] = Counter()

    @property
    def peers(self) -> dict[int, Peer]:
        return self.known

    def meet(self, workers: tuple[Peer, ...], lost: str) -> None:
        self.known, self.lost = {w.index: w for w in workers}, lost or self.lost
        if self.announces and len(workers) > 1:
            self.announces = False
            self.posts.append(Mail("", Store(NO_STORE)))

    def from_peer(self, peer: str, sender: int) -> bool:
        return is_worker_peer(peer, sender)

    def receive(self, piece: Piece, frame: Any) -> None:
        if self.late[piece.sender]:
            self.late[piece.sender] -= 1
        else:
            self.came.setdefault(piece.sender, deque()).append((piece, frame))

    def give_up(self, sources: list[int]) -> None:
        """A collective will not end. What those that are left send for it is not for the next."""
        for worker in sources:
            if self.came.get(worker):
                self.came[worker].popleft()
            elif worker in self.known:
                self.late[worker] += 1

    def hear(self, word: InputFailed | StallQuery | Noted | Ways | Aborted) -> None:
        raise ProtocolError(f"{type(word).__name__} where all is said by mail")

    def outgoing(self) -> list[Mail]:
        posts, self.posts = self.posts, []
        return posts

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> PendingCollective:
        self.ways["mail"] += 1
        return _Round(self, client, kind, operands, tag)

    def present(self, array: Any, spec: Spec) -> np.ndarray | None:
        """A tensor's elements, or None where it is broken."""
        return None if array is None or isinstance(array, Broken) else elements(self.engine.store(array, spec), spec)

    def array(self, part: np.ndarray, spec: Spec) -> Any:
        return self.engine.load(np.ascontiguousarray(part).data.cast("B") if spec.numel else memoryview(b""), spec, True)


class _Round:
    """One collective of one worker: what it sends when it begins, and whom it waits for."""

    def __init__(self, collectives: MailCollectives, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.collectives, self.client, self.kind, self.operands, self.tag = collectives, client, kind, operands, tag
        self.group: tuple[int, ...] = kind.settings["group"]
        self.specs: list[Spec] = [kind.ins[i] for i in kind.tensors]
        self.mine = [collectives.present(a, s) for a, s in zip(operands, self.specs)]
        self.others = [w for w in self.group if w != collectives.index]
        sends: list[tuple[int, np.ndarray | None]]
        sends, self.sources, self.finish = getattr(self, f"_{kind.row.name}")()
        self.cause = why = failed_operand(operands, tag)
        for to, part in sends:
            frame = b"" if why or part is None else np.ascontiguousarray(part).tobytes()
            piece = Piece(collectives.index, client, tag, *((why.text, why.error, why.tensor) if why else ()))
            collectives.posts.append(Mail(worker_peer(to), piece, (frame,)))

    late = ""  # why it was given up

    def ready(self) -> bool:
        came = self.collectives.came
        return all(came.get(w) for w in self.sources) or self._gone() is not None or bool(self.late)

    def give_up(self, why: str) -> None:
        """The others have what they need of this worker, so they are not told."""
        self.late = why

    def ask(self) -> None:
        """Whose mail has not come is known."""

    def missing(self) -> list[int]:
        return [w for w in self.sources if not self.collectives.came.get(w)]

    def _gone(self) -> int | None:
        return next((w for w in self.sources if w not in self.collectives.peers and not self.collectives.came.get(w)), None)

    def result(self) -> list[Any]:
        gone = self._gone()
        if gone is not None:
            self.collectives.give_up(self.sources)
            raise WorkerLost(
                f"{self.kind.row.name} with workers {list(self.group)} cannot end: {self.collectives.lost or gone}"
            )
        if self.late:
            self.collectives.give_up(self.sources)
            raise RemoteError(self.late)
        frames, cause = {}, self.cause
        for worker in self.sources:
            piece, frames[worker] = self.collectives.came[worker].popleft()
            if (piece.client, piece.tag) != (self.client, self.tag):
                at = f"tensor {piece.tag} of {piece.client}, this one at {self.tag} of {self.client}"
                raise ProtocolError(f"worker {worker} is at {at}")
            if piece.why:
                cause = cause or Broken(piece.error, piece.why, piece.tensor)
        if cause:
            raise OperandFailed(cause)
        return self.finish(frames)

    def _all_reduce(self) -> tuple:
        flat = [m for m in self.mine if m is not None]
        data = b"".join(np.ascontiguousarray(m).tobytes() for m in flat)
        sends = [(w, np.frombuffer(data, np.uint8)) for w in self.others]

        def finish(frames: dict[int, Any]) -> list[Any]:
            found, at = [], 0
            for array, spec in zip(self.operands, self.specs):
                terms = [
                    array if w == self.collectives.index
                    else self.collectives.array(elements(memoryview(frames[w])[at : at + spec.nbytes], spec), spec)
                    for w in self.group
                ]  # fmt: skip
                found.append(self._reduced(terms, spec))
                at += spec.nbytes
            return found

        return sends, self.others, finish

    def _reduced(self, terms: list[Any], spec: Spec) -> Any:
        """In the group's order, so that all workers have the same bits."""
        name = self.kind.settings["reduce"]
        if spec.dtype is bool_:
            name = {"sum": "max", "prod": "min"}.get(name, name)
        kernel: Callable = self.collectives.engine.kernel(infer(TABLE[REDUCE[name]], (spec, spec), ()))
        total = terms[0]
        for term in terms[1:]:
            total = kernel(total, term)
        return total

    def _reduce_scatter(self) -> tuple:
        axis, n, me = self.kind.settings["axis"], len(self.group), self.group.index(self.collectives.index)

        def part(t: int, i: int) -> np.ndarray:
            """The piece of tensor t that is the i-th of the group's."""
            mine, (start, size) = self.mine[t], split(self.specs[t].shape[axis], n, i)
            assert mine is not None
            return mine[(*(slice(None),) * axis, slice(start, start + size))]

        def parts(i: int) -> np.ndarray | None:
            if any(m is None for m in self.mine):
                return None
            return np.frombuffer(b"".join(np.ascontiguousarray(part(t, i)).tobytes() for t in range(len(self.mine))), np.uint8)

        def finish(frames: dict[int, Any]) -> list[Any]:
            found, at = [], 0
            for t, out in enumerate(self.kind.outs):
                terms = [
                    part(t, me) if w == self.collectives.index else elements(memoryview(frames[w])[at : at + out.nbytes], out)
                    for w in self.group
                ]
                found.append(self._reduced([self.collectives.array(term, out) for term in terms], out))
                at += out.nbytes
            return found

        return [(w, parts(i)) for i, w in enumerate(self.group) if i != me], self.others, finish

    def _all_gather(self) -> tuple:
        spec, axis, size = self.specs[0], self.kind.settings["axis"], self.kind.settings["size"]

        def finish(frames: dict[int, Any]) -> list[Any]:
            parts: list[Any] = []
            for i, w in enumerate(self.group):
                shape = (*spec.shape[:axis], split(size, len(self.group), i)[1], *spec.shape[axis + 1 :])
                parts.append(self.mine[0] if w == self.collectives.index else elements(frames[w], Spec(shape, spec.dtype)))
            return [self.collectives.array(np.concatenate(parts, axis), self.kind.outs[0])]

        return [(w, self.mine[0]) for w in self.others], self.others, finish

    def _broadcast(self) -> tuple:
        root = self.group[0]
        if root == self.collectives.index:
            return [(w, self.mine[0]) for w in self.others], [], lambda frames: []
        return [], [root], lambda frames: [self.collectives.array(elements(frames[root], self.kind.outs[0]), self.kind.outs[0])]

    def _exchange(self) -> tuple:
        me, settings = self.collectives.index, self.kind.settings
        whole = self.mine[0] if self.mine else None

        def part(start: Shape, shape: Shape) -> np.ndarray | None:
            return None if whole is None else cut(whole, start, shape)

        parts = {to: part(start, shape) for to, start, shape in settings["sends"]}

        def finish(frames: dict[int, Any]) -> list[Any]:
            if not settings["takes"]:
                return []
            out = self.kind.outs[0]
            made = np.empty(out.shape, f"V{out.dtype.size}")
            for source, start, shape in settings["takes"]:
                spec = Spec(shape, out.dtype)
                cut(made, start, shape)[...] = parts[me] if source == me else elements(frames[source], spec)
            return [self.collectives.array(made, out)]

        sends = [(to, p) for to, p in parts.items() if to != me]
        return sends, [s for s, _, _ in settings["takes"] if s != me], finish


class Undecided:
    """A collective whose members have not all said how they can be reached, and by which ways they can go."""

    def __init__(self, collectives: Any, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.collectives, self.client, self.kind, self.operands, self.tag = collectives, client, kind, operands, tag
        self.chosen: PendingCollective | None = None

    def ready(self) -> bool:
        if self.chosen is None and not self.collectives.unknown(self.kind):
            operands, self.operands = self.operands, []
            self.chosen = self.collectives.choose(self.client, self.kind, operands, self.tag)
        return self.chosen is not None and self.chosen.ready()

    def result(self) -> list[Any]:
        assert self.chosen is not None
        return self.chosen.result()

    def ask(self) -> None:
        if self.chosen is not None:
            self.chosen.ask()

    def missing(self) -> list[int]:
        if self.chosen is not None:
            return self.chosen.missing()
        return self.collectives.silent(self.kind.settings["group"])

    def give_up(self, why: str) -> None:
        """Without its way it cannot: those that will talk would be out of step."""
        if self.chosen is not None:
            self.chosen.give_up(why)
