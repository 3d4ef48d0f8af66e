"""How a set of workers moves bytes: by NCCL where each has a GPU of its own, out of each other's memory where all are on one
host, in two levels where hosts have several of them, by mail elsewhere, or by Gloo where that was asked for. A group is built
when first needed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from gt.ops import Kind
from gt.transport.addresses import listener
from gt.transport.messages import Peer, Reached
from gt.transport.process_memory import Inbox, PeerProcess
from gt.worker.collectives.mail_transport import Mailbox, MailTransport
from gt.worker.collectives.members import name_of, reached
from gt.worker.collectives.ops import Moves
from gt.worker.collectives.two_level import Sets, TwoLevel, hosts_agreed
from gt.worker.engine import Engine

ORDER = ("nccl here", "nccl", "memory", "gloo here", "gloo")  # ways, the best first; "here": on one host


def transports() -> Any:
    """The transports that need PyTorch. To load it takes seconds: a thread does so, when a group is built."""
    from gt.worker.collectives import torch_transport

    return torch_transport


class Group:
    """A set of workers whose way to move bytes is being found, or is found, or could not be. Each member tries what it can do
    with all others and says so; the first way that all can is theirs. NCCL and Gloo neither encrypt nor ask who connects: on
    one host they meet in a file that only this user can read, between hosts they are used where that was asked for."""

    def __init__(
        self, members: tuple[int, ...], me: int, peers: dict[int, Peer], host: str, waker: Callable[[], None],
        inbox: Inbox | None, plain: bool = False, generation: int = 0,
    ) -> None:  # fmt: skip
        self.members, self.rank, self.host, self.waker, self.inbox = members, members.index(me), host, waker, inbox
        self.plain, self.generation, self.ended = plain, generation, False
        self.mailbox = Mailbox(me, name_of(members, generation))  # between hosts
        self.hosts: Sets | None = None  # the members by host, where they go in two levels
        said = [peers[m].reached or Reached() for m in members]
        self.locals = [peers[m].address for m in members]
        self.store, gpus, self.offers = said[0].store, {r.gpu for r in said}, [r.memory for r in said]
        self.gpus = "" not in gpus and len(gpus) == len(members)  # NCCL refuses two members on one GPU
        self.stores = all(r.store for r in said)
        self.labels = [r.host for r in said]
        self.neighbours: dict[int, PeerProcess] = {}  # by rank
        self.own: tuple[str, ...] | None = None  # the ways that this member can go
        self.said: dict[int, tuple[str, ...]] = {}  # and the others
        self.near: dict[int, tuple[int, ...]] = {}  # whose memory each member reads, its own among them
        self.told = False  # whether they were told
        self.way = ""  # "" until all have said
        self.made: Moves | None = None
        self.failed: Exception | None = None
        self._start(self._find)

    @property
    def nccl(self) -> bool:
        return self.way.startswith("nccl")

    def _start(self, what: Callable[[], None]) -> None:
        threading.Thread(target=what, name="gt-group", daemon=True).start()

    def _find(self) -> None:
        """Try what this member can do with all others."""
        same = [label == self.labels[self.rank] for label in self.labels]
        processes = {r: listener(at) if same[r] else 0 for r, at in enumerate(self.locals) if r != self.rank}
        near = all(processes.values())
        self.neighbours = reached(self.rank, self.offers, self.inbox, processes)
        can = {
            "nccl here": self.gpus and near,
            "nccl": self.gpus and self.plain and self.stores,
            "memory": self.inbox is not None and len(self.neighbours) == len(self.members) - 1,
            "gloo here": near and self.inbox is None,
            "gloo": self.plain and self.stores,
        }
        read = {self.rank, *self.neighbours} if self.inbox is not None else set()
        self.near[self.members[self.rank]] = tuple(m for r, m in enumerate(self.members) if r in read)
        self.own = tuple(way for way in ORDER if can[way])
        self.waker()

    def hear(self, member: int, ways: tuple[str, ...], near: tuple[int, ...] = ()) -> None:
        """What another member can do."""
        self.said[member], self.near[member] = ways, near

    def decide(self) -> None:
        """Choose the way, once all have said what they can, and go it."""
        if not self.way and self.own is not None and len(self.said) == len(self.members) - 1:
            common = set(self.own).intersection(*self.said.values())
            self.way = next((way for way in ORDER if way in common), "")
            if not self.way:
                self.hosts = hosts_agreed(self.members, self.near)
                self.way = "hosts" if self.hosts is not None else "mail"
            if self.way != "mail":
                self._start(self._build)

    def _build(self) -> None:
        try:
            by = transports()
            if self.way == "memory":
                self.made = by.PeerMemoryGroup(self.members, self.rank, self.neighbours, self.inbox, self.generation)
            elif self.hosts is not None:
                self.made = self._two_level(self.hosts)
            else:
                group = (self.members, self.rank, self.generation)
                self.made = by.process_group(self.way, *group, self.locals[0], self.store, self.host, self.waker)
        except Exception as failed:  # torch.distributed may fail in any way; the collective that waits for the group raises it
            self.failed = failed
        if self.ended and self.made is not None:
            self.made.end()
        self.waker()

    def _two_level(self, hosts: Sets) -> TwoLevel:
        """Out of each other's memory inside a host. Between hosts each collective has a transport of its own: see `moves`."""
        ranks = tuple(tuple(map(self.members.index, there)) for there in hosts)
        here, inside = next(i for i, there in enumerate(ranks) if self.rank in there), None
        if len(ranks[here]) > 1:
            assert self.inbox is not None
            peers = {i: self.neighbours[r] for i, r in enumerate(ranks[here]) if r != self.rank}
            mine = ranks[here].index(self.rank)
            inside = transports().PeerMemoryGroup(hosts[here], mine, peers, self.inbox, self.generation, self.members)
        return TwoLevel("hosts", ranks, self.rank, inside, None, lambda like, n: like.new_empty(n))

    def moves(self, engine: Engine, client: str, kind: Kind, tag: int) -> Moves:
        """What one collective goes by."""
        assert self.made is not None
        firsts = tuple(there[0] for there in self.hosts or ())
        if self.members[self.rank] not in firsts:
            return self.made
        assert isinstance(self.made, TwoLevel)
        made = copy.copy(self.made)
        made.between = transports().TorchMail(MailTransport(self.mailbox, engine, client, kind, tag, None, firsts))
        return made

    def renewed(self, generation: int) -> Group:
        """The next group of these members, which go the same way: what is begun in it is none of this one's."""
        mailbox = Mailbox(self.mailbox.index, name_of(self.members, generation))
        if not self.way:  # its members are still to say what they can do
            self.generation, self.mailbox = generation, mailbox
            return self
        other = copy.copy(self)
        other.mailbox = mailbox
        other.generation, other.made, other.failed, other.ended = generation, None, None, False
        if other.way != "mail":
            other._start(other._build)
        return other

    def end(self) -> None:
        """It is not used any more."""
        self.ended = True
        if self.made is not None:
            self.made.end()
