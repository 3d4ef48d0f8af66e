"""How a set of workers moves bytes: by NCCL where each has a GPU of its own, out of each other's memory where all are on one
host, in two levels where hosts have several of them, by mail elsewhere, or by Gloo where that was asked for. A group is built
when first needed."""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gt import environment
from gt.ops import Kind
from gt.transport.addresses import listener, open_port
from gt.transport.messages import Peer, Reached
from gt.transport.process_memory import Inbox, PeerProcess
from gt.worker.collectives.mail_transport import Mailbox, MailTransport
from gt.worker.collectives.ops import Moves, Work
from gt.worker.collectives.peer_memory import COMBINE, PeerMemoryGroup, name_of, reached
from gt.worker.collectives.torch_arrays import TorchMail, as_bytes
from gt.worker.collectives.two_level import Sets, TwoLevel, hosts_agreed
from gt.worker.engine import Engine

ORDER = ("nccl here", "nccl", "memory", "gloo here", "gloo")  # ways, the best first; "here": on one host
OPS: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN, "prod": dist.ReduceOp.PRODUCT
}  # fmt: skip


def patience() -> timedelta:
    """How long torch.distributed waits: GT_COLLECTIVE_TIMEOUT. Most groups end by message long before."""
    return timedelta(seconds=environment.COLLECTIVE_TIMEOUT.value() or 7 * 24 * 3600)


class Distributed:
    """A process group of torch.distributed."""

    def __init__(self, made: Any, way: str, waker: Callable[[], None]) -> None:
        self.made, self.way, self.waker = made, way, waker

    def reduce(self, whole: torch.Tensor, how: str) -> Work:
        options = dist.AllreduceOptions()
        options.reduceOp = OPS[how]
        return self._watch(self.made.allreduce([whole], options))

    def reduce_first(self, whole: torch.Tensor, how: str) -> Work:
        return self.reduce(whole, how)

    def gather(self, out: torch.Tensor, part: torch.Tensor) -> Work:
        return self._watch(self.made._allgather_base(out, part))

    def spread(self, tensor: torch.Tensor) -> Work:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self._watch(self.made.broadcast([tensor], options))

    def swap(self, out: torch.Tensor, data: torch.Tensor, takes: list[int], sends: list[int]) -> Work:
        return self._watch(self.made.alltoall_base(out, data, takes, sends))

    def scatter(self, data: torch.Tensor, sizes: list[int], how: str) -> tuple[Work, Callable[[], torch.Tensor]]:
        n, item, mine = len(sizes), data.element_size(), sizes[self.made.rank()]
        terms = torch.empty(n, mine, dtype=data.dtype, device=data.device)
        work = self.swap(as_bytes(terms), as_bytes(data), [mine * item] * n, [size * item for size in sizes])
        return work, lambda: functools.reduce(COMBINE[how], terms.unbind())

    def end(self) -> None:
        """To end it is to wait for what is under way, until that fails or its time is over; a thread does that."""
        made, self.made = [self.made], None
        threading.Thread(target=made.clear, name="gt-group-end", daemon=True).start()

    def _watch(self, work: Any) -> Work:
        if self.way == "nccl":
            return OnDevice(work, self.waker)
        future, waker = work.get_future(), self.waker  # is done before the work says so, and its callback comes in between
        future.add_done_callback(lambda _: waker())  # naming `self` would close a cycle that no collector sees
        return future


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
            if self.way == "memory":
                assert self.inbox is not None
                self.made = PeerMemoryGroup(self.members, self.rank, self.neighbours, self.inbox, self.generation)
            elif self.hosts is not None:
                self.made = self._two_level(self.hosts)
            else:
                make = self._nccl if self.nccl else self._gloo
                self.made = Distributed(make(self._named()), self.way.split()[0], self.waker)
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
            inside = PeerMemoryGroup(hosts[here], mine, peers, self.inbox, self.generation, self.members)
        return TwoLevel("hosts", ranks, self.rank, inside, None, lambda like, n: like.new_empty(n))

    def moves(self, engine: Engine, client: str, kind: Kind, tag: int) -> Moves:
        """What one collective goes by."""
        assert self.made is not None
        firsts = tuple(there[0] for there in self.hosts or ())
        if self.members[self.rank] not in firsts:
            return self.made
        assert isinstance(self.made, TwoLevel)
        made = copy.copy(self.made)
        made.between = TorchMail(MailTransport(self.mailbox, engine, client, kind, tag, None, firsts))
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

    def _named(self) -> Any:
        """A store in which members find each other: a file beside the first member's socket, or that member's own by TCP."""
        name = "-".join(map(str, self.members)) + (f".{self.generation}" if self.generation else "")
        if self.way.endswith("here"):
            return dist.FileStore(f"{self.locals[0].removeprefix('ipc://')}.{name}.store", len(self.members))
        host, _, port = self.store.rpartition(":")
        store = dist.TCPStore(host, int(port), None, False, patience(), False)
        return dist.PrefixStore(f"gt/{name}", store)

    def _gloo(self, store: Any) -> Any:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        at = "127.0.0.1" if self.way.endswith("here") else self.host
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=at)]
        options._timeout = patience()
        return dist.ProcessGroupGloo(store, self.rank, len(self.members), options)

    def _nccl(self, store: Any) -> Any:
        if self.host.startswith("127."):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # what is on one host listens there
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = patience()
        group = dist.ProcessGroupNCCL(store, self.rank, len(self.members), options)
        group.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return group


def keep_store(host: str) -> tuple[Any, str]:
    """A store for groups at this address of this host, and where it is."""
    fd, port = open_port(host)
    made = dist.TCPStore(host, port, None, True, timedelta(seconds=60), False, False, fd, True)
    return made, f"{host}:{port}"


class OnDevice:
    """Work of NCCL. What follows it on the device would be in order without a word to the host; the host waits, as only then
    is it sure that nobody had nothing to give."""

    def __init__(self, work: Any, waker: Callable[[], None]) -> None:
        work.wait()  # orders this device's stream behind the collective
        self.end = torch.cuda.Event(blocking=True)
        self.end.record()
        threading.Thread(target=self._watch, args=(self.end, waker), name="gt-device", daemon=True).start()

    @staticmethod
    def _watch(end: Any, waker: Callable[[], None]) -> None:
        end.synchronize()
        waker()

    def done(self) -> bool:
        return self.end.query()

    def wait(self) -> None:
        """It has been waited for."""
