"""The interface of a worker's collectives, and collectives by mail, which the in-process cluster and workers without PyTorch
use. Nothing blocks: a collective is begun, and ends when all its mail has arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gt.errors import ProtocolError, RemoteError, WorkerLost
from gt.ops import Kind
from gt.transport.addresses import host_key
from gt.transport.messages import Aborted, InputFailed, Mail, Noted, Peer, Piece, Reached, StallQuery, Store, Ways
from gt.worker.client_values import Broken
from gt.worker.collectives.mail_transport import HostArrays, Mailbox, MailTransport, MailWork, OperandFailed
from gt.worker.collectives.ops import Part, Transport, begin
from gt.worker.collectives.two_level import Stages, TwoLevel, sets_by_mail
from gt.worker.engine import Engine
from gt.worker.peer_names import worker_peer

NO_TORCH = Reached(torch=False)
Members = tuple[int, ...]
LISTED = 16  # most workers named in a message
LOST_HOSTS = 256  # most lost workers whose hosts are kept


def failed_operand(operands: list[Any], tag: int) -> Broken | None:
    """The cause if an operand of this worker failed."""
    if any(a is None for a in operands):
        return Broken("RemoteError", "a tensor is missing", tag)
    return next((a for a in operands if isinstance(a, Broken)), None)


def listed(workers: Sequence[Any]) -> str:
    """Workers as text for a message, at most `LISTED` of them."""
    shown = ", ".join(map(str, workers[:LISTED]))
    return f"[{shown}]" if len(workers) <= LISTED else f"[{shown}, and {len(workers) - LISTED} more]"


Recorder = Callable[[Kind], Callable[..., Any]]  # gives the kernel of a collective for a recording


class PendingCollective(Protocol):
    """A collective in progress."""

    tag: int

    @property
    def kind(self) -> Kind: ...

    def ready(self) -> bool: ...
    def result(self) -> list[Any]:
        """Its results; raises the error if it failed."""

    def ask(self) -> None:
        """Query which members are missing, for a stalled collective."""

    def missing(self) -> list[int]:
        """The members that have not joined yet, as far as known."""

    def give_up(self, why: str) -> None:
        """End the collective with this error, after a timeout."""


class Collectives(Protocol):
    """A worker's collectives with its peers. `ways` counts them by transport."""

    index: int
    engine: Engine
    ways: Counter[str]
    hosts: dict[int, str]  # a name of each worker's host

    @property
    def peers(self) -> dict[int, Peer]:
        """The connected workers, including this one."""

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> PendingCollective: ...
    def records(self, members: Members) -> bool:
        """Whether a device's recording can hold collectives of these workers; known once they have had one."""

    def recorder(self, members: Members) -> Recorder | None:
        """The present recorder of a group's collectives; another one after an abort, which voids older recordings."""

    def meet(self, workers: tuple[Peer, ...], lost: str) -> None:
        """Set the connected workers; the others are lost."""

    def from_peer(self, peer: str, sender: int) -> bool:
        """Whether this peer is the worker `sender`."""

    def receive(self, piece: Piece, frame: Any) -> None: ...
    def hear(self, word: InputFailed | StallQuery | Noted | Ways | Aborted) -> None: ...
    def outgoing(self) -> list[Mail]:
        """The mail to send."""


def is_worker_peer(peer: str, sender: int) -> bool:
    return peer == worker_peer(sender)


class MailCollectives(Mailbox):
    """Collectives by mail."""

    def __init__(self, engine: Engine, announces: bool = False) -> None:
        super().__init__()
        self.engine, self.announces = engine, announces
        self.lost = ""
        self.hosts: dict[int, str] = {}  # of workers, including the last lost ones: all members must compute the same sets
        self.ways: Counter[str] = Counter()

    @property
    def peers(self) -> dict[int, Peer]:
        return self.known

    def meet(self, workers: tuple[Peer, ...], lost: str) -> None:
        self.drop_lost({w.index for w in workers})
        self.known, self.lost = {w.index: w for w in workers}, lost or self.lost
        self.hosts.update({w.index: host_key(w.host, w.remote) for w in workers})
        for index in sorted(self.hosts.keys() - self.known.keys())[:-LOST_HOSTS]:
            del self.hosts[index]
        if self.announces and len(workers) > 1:
            self.announces = False
            self.posts.append(Mail("", Store(NO_TORCH)))

    def records(self, members: Members) -> bool:
        return False

    def recorder(self, members: Members) -> Recorder | None:
        return None

    def from_peer(self, peer: str, sender: int) -> bool:
        return is_worker_peer(peer, sender)

    def hear(self, word: InputFailed | StallQuery | Noted | Ways | Aborted) -> None:
        raise ProtocolError(f"unexpected {type(word).__name__}: collectives by mail expect Piece only")

    def outgoing(self) -> list[Mail]:
        posts, self.posts = self.posts, []
        return posts

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> PendingCollective:
        made = _MailCollective(self, client, kind, operands, tag)
        self.ways[made.way] += 1
        return made

    def begin_failed(self, client: str, kind: Kind, cause: Broken, tag: int) -> None:
        """Take part in a collective that was already given up here: without data, and waiting for nobody."""
        _MailCollective(self, client, kind, [cause] * len(kind.tensor_operands), tag).work.abandon(cause)

    def transport(self, client: str, kind: Kind, tag: int, cause: Broken | None) -> Transport:
        """The transport of one collective: in two levels if its members are on several hosts, or many."""
        members: Members = kind.settings["group"]
        sets = sets_by_mail(members, lambda m: self.hosts.get(m, "")) if "sends" not in kind.settings else None
        if sets is None:
            return MailTransport(self, self.engine, client, kind, tag, cause)
        own = next(there for there in sets if self.index in there)
        firsts = tuple(there[0] for there in sets)

        def level(those: Members) -> MailTransport | None:
            takes_part = self.index in those and len(those) > 1
            return MailTransport(self, self.engine, client, kind, tag, cause, those) if takes_part else None

        inside, between = level(own), level(firsts)

        def spoil(cause: Broken) -> None:
            for transport in (inside, between):
                if transport is not None:
                    transport.cause = transport.cause or cause

        ranks = tuple(tuple(map(members.index, there)) for there in sets)
        blank = lambda like, n: np.empty(n, like.dtype)  # noqa: E731
        return TwoLevel("mail in two levels", ranks, members.index(self.index), inside, between, blank, spoil)


class _MailCollective:
    """One collective of one worker, by mail: it sends its pieces when it begins, and ends when its peers' pieces have
    arrived."""

    late = ""  # reason for giving up

    def __init__(self, collectives: MailCollectives, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.collectives, self.kind, self.tag = collectives, kind, tag
        cause = failed_operand(operands, tag)
        transport = collectives.transport(client, kind, tag, cause)
        self.way = transport.way
        part = Part(kind, collectives.index, HostArrays(collectives.engine), transport)
        work, self.finish = begin(part, list(operands), cause is not None)
        assert isinstance(work, (MailWork, Stages))
        self.work = work

    def ready(self) -> bool:
        return self.work.done() or self._gone() is not None or bool(self.late)

    def give_up(self, why: str) -> None:
        """The peers have this worker's pieces already, or get the reason in place of pieces of later stages."""
        self.late = why

    def ask(self) -> None:
        """Nothing to query: the missing mail shows the missing members."""

    def missing(self) -> list[int]:
        return [w for w in self.work.sources if not self.collectives.came.get(w)]

    def _gone(self) -> int | None:
        came, peers = self.collectives.came, self.collectives.peers
        return next((w for w in self.work.sources if w not in peers and not came.get(w)), None)

    def result(self) -> list[Any]:
        gone = self._gone()
        if gone is not None:
            group = listed(self.kind.settings["group"])
            lost = f"{self.kind.row.name} with workers {group} cannot end: {self.collectives.lost or gone}"
            self.work.abandon(Broken("WorkerLost", lost, self.tag))
            raise WorkerLost(lost)
        if self.late:
            self.work.abandon(Broken("RemoteError", self.late, self.tag))
            raise RemoteError(self.late)
        self.work.wait()
        return self.finish()


class Undecided:
    """A collective whose members have not all announced how they are reached and which transports they can use."""

    def __init__(self, collectives: Any, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.collectives, self.client, self.kind, self.operands, self.tag = collectives, client, kind, operands, tag
        self.chosen: PendingCollective | None = None
        self.late: Broken | None = None  # reason for giving up

    def ready(self) -> bool:
        if self.late is not None:
            return True
        if self.chosen is None and not self.collectives.unknown(self.kind):
            operands, self.operands = self.operands, []
            self.chosen = self.collectives.choose(self.client, self.kind, operands, self.tag)
        return self.chosen is not None and self.chosen.ready()

    def result(self) -> list[Any]:
        if self.late is not None:
            raise OperandFailed(self.late)
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
        """The peers cannot be told before the transport is known; then they are, before the next collective with them."""
        if self.chosen is not None:
            self.chosen.give_up(why)
        else:
            self.operands, self.late = [], Broken("RemoteError", why, self.tag)
            self.collectives.overdue.append(self)
