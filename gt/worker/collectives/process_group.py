"""The group of a set of workers and its transport: NCCL if each has a GPU of its own, peer memory if all are on one host, two
levels if hosts have several of them, mail otherwise, or Gloo if requested. A group is built when first needed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

from gt.lazy_import import LazyImport
from gt.ops import Kind
from gt.transport.addresses import listener
from gt.transport.messages import Peer, Reached
from gt.transport.process_memory import Inbox, PeerProcess
from gt.worker.collectives.mail_transport import Mailbox, MailTransport
from gt.worker.collectives.members import name_of, reached
from gt.worker.collectives.ops import Transport
from gt.worker.collectives.two_level import Sets, TwoLevel, hosts_agreed
from gt.worker.engine import Engine

ORDER = ("nccl here", "nccl", "memory", "gloo here", "gloo")  # ways, the best first; "here": on one host


# The transports that need PyTorch. Loading them takes seconds: a thread does it when a group is built.
torch_transport = LazyImport("gt.worker.collectives.torch_transport")


class Group:
    """A set of workers that agree on a transport. Each member tests which ways work with all others and announces them; the
    first one that all can use is chosen. NCCL and Gloo neither encrypt nor authenticate: on one host their rendezvous is a file
    that only this user can read, between hosts they are used only if requested."""

    def __init__(
        self, members: tuple[int, ...], me: int, peers: dict[int, Peer], host: str, waker: Callable[[], None],
        inbox: Inbox | None, plain: bool = False, generation: int = 0,
    ) -> None:  # fmt: skip
        self.members, self.rank, self.host, self.waker, self.inbox = members, members.index(me), host, waker, inbox
        self.plain, self.generation, self.ended = plain, generation, False
        self.mailbox = Mailbox(me, name_of(members, generation))  # for mail between hosts
        self.hosts: Sets | None = None  # the members by host, if the transport has two levels
        reached_at = [peers[m].reached or Reached() for m in members]
        self.locals = [peers[m].address for m in members]
        self.store, gpus, self.offers = reached_at[0].store, {r.gpu for r in reached_at}, [r.memory for r in reached_at]
        self.gpus = "" not in gpus and len(gpus) == len(members)  # NCCL refuses two members on one GPU
        self.stores = all(r.store for r in reached_at)
        self.labels = [r.host for r in reached_at]
        self.neighbours: dict[int, PeerProcess] = {}  # by rank
        self.own: tuple[str, ...] | None = None  # the ways that work for this member
        self.peer_ways: dict[int, tuple[str, ...]] = {}  # the ways that work for each peer
        self.near: dict[int, tuple[int, ...]] = {}  # the members whose memory each member can read, including itself
        self.announced = False  # whether the peers know `own`
        self.way = ""  # the chosen way; "" until all members have announced theirs
        self.made: Transport | None = None
        self.failed: Exception | None = None
        self.records: Callable[[Kind], Callable[..., Any]] | None = None
        self._start(self._find)

    @property
    def nccl(self) -> bool:
        return self.way.startswith("nccl")

    def _start(self, what: Callable[[], None]) -> None:
        threading.Thread(target=what, name="gt-group", daemon=True).start()

    def _find(self) -> None:
        """Test which ways work with all other members."""
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
        """Note the ways that work for a peer."""
        self.peer_ways[member], self.near[member] = ways, near

    def decide(self) -> None:
        """Choose the way, once all members have announced theirs, and build the group."""
        if not self.way and self.own is not None and len(self.peer_ways) == len(self.members) - 1:
            common = set(self.own).intersection(*self.peer_ways.values())
            self.way = next((way for way in ORDER if way in common), "")
            if not self.way:
                self.hosts = hosts_agreed(self.members, self.near)
                self.way = "hosts" if self.hosts is not None else "mail"
            if self.way != "mail":
                self._start(self._build)

    def _build(self) -> None:
        try:
            by = torch_transport
            if self.way == "memory":
                self.made = by.PeerMemoryGroup(self.members, self.rank, self.neighbours, self.inbox, self.generation)
            elif self.hosts is not None:
                self.made = self._two_level(self.hosts)
            else:
                group = (self.members, self.rank, self.generation)
                self.made = by.process_group(self.way, *group, self.locals[0], self.store, self.host, self.waker)
        except Exception as failed:  # torch.distributed may raise anything; the collective that waits for the group raises it
            self.failed = failed
        if self.ended and self.made is not None:
            self.made.end()
        self.waker()

    def _two_level(self, hosts: Sets) -> TwoLevel:
        """Peer memory inside a host. Between hosts each collective has a transport of its own: see `transport`."""
        ranks = tuple(tuple(map(self.members.index, there)) for there in hosts)
        here, inside = next(i for i, there in enumerate(ranks) if self.rank in there), None
        if len(ranks[here]) > 1:
            assert self.inbox is not None
            peers = {i: self.neighbours[r] for i, r in enumerate(ranks[here]) if r != self.rank}
            mine = ranks[here].index(self.rank)
            inside = torch_transport.PeerMemoryGroup(hosts[here], mine, peers, self.inbox, self.generation, self.members)
        return TwoLevel("hosts", ranks, self.rank, inside, None, lambda like, n: like.new_empty(n))

    def transport(self, engine: Engine, client: str, kind: Kind, tag: int) -> Transport:
        """The transport of one collective."""
        assert self.made is not None
        firsts = tuple(there[0] for there in self.hosts or ())
        if self.members[self.rank] not in firsts:
            return self.made
        assert isinstance(self.made, TwoLevel)
        made = copy.copy(self.made)
        made.between = torch_transport.TorchMail(MailTransport(self.mailbox, engine, client, kind, tag, None, firsts))
        return made

    def recorder(self, engine: Engine) -> Callable[[Kind], Callable[..., Any]]:
        """Gives the kernels of collectives for a device's recording; the same object as long as the group lives."""
        if self.records is None:
            assert self.made is not None
            self.records = torch_transport.RecordedCollectives(engine, self.members[self.rank], self.made)
        return self.records

    def renewed(self, generation: int) -> Group:
        """A new group of these members with the same way, which shares no collective with this one."""
        mailbox = Mailbox(self.mailbox.index, name_of(self.members, generation))
        if not self.way:  # its members have not announced their ways yet
            self.generation, self.mailbox = generation, mailbox
            return self
        other = copy.copy(self)
        other.mailbox = mailbox
        other.generation, other.made, other.failed, other.ended, other.records = generation, None, None, False, None
        if other.way != "mail":
            other._start(other._build)
        return other

    def end(self) -> None:
        """End the group."""
        self.ended = True
        if self.made is not None:
            self.made.end()
