"""Collectives of workers that have PyTorch. Nothing here blocks: groups are built in threads, torch.distributed completes its
work in threads, and both call `waker`; on one host, peers write to the `inbox`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gt import environment
from gt.errors import ProtocolError, WorkerLost
from gt.ops import Kind
from gt.transport.messages import Aborted, InputFailed, Mail, Noted, Peer, Piece, Reached, StallQuery, Store, Ways
from gt.transport.process_memory import Inbox
from gt.worker.client_values import Broken, failure, out_of_memory
from gt.worker.collectives.aborts import Aborts, Key
from gt.worker.collectives.early_words import EarlyWords, cause_of
from gt.worker.collectives.mail import (
    MailCollectives,
    PendingCollective,
    Recorder,
    Undecided,
    failed_operand,
    is_worker_peer,
    listed,
)
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.collectives.ops import Part, Work, begin
from gt.worker.collectives.process_group import ORDER, Group, torch_transport
from gt.worker.engine import Engine
from gt.worker.peer_names import worker_peer

LOSS_TIMEOUT = 5.0  # seconds for the dispatcher to report the loss of a worker whose connection to a peer broke


def has_torch(peer: Peer) -> bool:
    return peer.reached is None or peer.reached.torch


def gpu_of(engine: Engine) -> str:
    """The GPU of an engine; "" if it has none."""
    return "" if engine.device == "cpu" else torch_transport.gpu_of(engine)


class GroupCollectives:
    """Collectives by the best transport of each group. A group with a worker without PyTorch uses mail."""

    def __init__(
        self, engine: Engine, host: str, waker: Callable[[], None], clock: Callable[[], float], inbox: Inbox | None = None,
        plain: bool = False, label: str = "",
    ) -> None:  # fmt: skip
        self.engine, self.host, self.waker, self.clock, self.inbox, self.plain = engine, host, waker, clock, inbox, plain
        self.label = label  # name of its host, if one was given
        self.mail = MailCollectives(engine)
        self.ways, self.hosts = self.mail.ways, self.mail.hosts
        self.groups: dict[tuple[int, ...], Group] = {}
        self.posts: list[Mail] = []
        self.records_any = environment.CUDA_GRAPHS.value()
        self.announced = False  # whether the peers know how this worker is reached
        self.store: Any = None
        self.aborts = Aborts()
        self.counts: Counter[tuple[int, ...]] = Counter()  # collectives begun, by members: the counts of all members agree
        self.at: Key = ((), 0)  # the last collective begun
        self.early = EarlyWords()
        self.heard: dict[tuple[int, ...], set[int]] = {}  # peers that have answered in the last collective of their group
        self.overdue: list[Undecided] = []  # given up before their transport was known: the peers do not know yet

    @property
    def index(self) -> int:
        return self.mail.index

    @index.setter
    def index(self, index: int) -> None:
        self.mail.index = index

    @property
    def peers(self) -> dict[int, Peer]:
        return self.mail.peers

    def meet(self, workers: tuple[Peer, ...], lost: str) -> None:
        self.mail.meet(workers, lost)
        if not self.announced and len(workers) > 1:
            self.announced, at = True, ""
            if self.plain and not self.host.startswith("127."):
                self.store, at = torch_transport.keep_store(self.host)
            offer = self.inbox.offer() if self.inbox is not None else ""
            self.posts.append(Mail("", Store(Reached(at, gpu_of(self.engine), offer, host=self.label))))
        if self.inbox is not None:
            self.inbox.keep({w.reached.memory for w in workers if w.reached is not None and w.reached.torch})
        for members in [m for m in self.groups if not set(m) <= self.peers.keys()]:
            self.abort((members, self.counts[members]), Broken("WorkerLost", lost, 0))
        self.counts = Counter({m: begun for m, begun in self.counts.items() if self.peers.keys() >= set(m)})
        self.aborts.meet(set(self.peers))
        self.early.meet(set(self.peers))
        self.heard = {members: heard for members, heard in self.heard.items() if set(members) <= self.peers.keys()}

    def abort(self, key: Key, cause: Broken) -> None:
        """Abort the collectives up to this one and tell all members. The next one needs a new group."""
        members = key[0]
        if not self.aborts.note(key, cause):
            return
        others = set(members) & self.peers.keys() - {self.index}
        group = self.groups.pop(members, None)
        if group is not None:
            if others == set(members) - {self.index}:
                self.groups[members] = group.renewed(key[1])
            if group.way:
                group.end()
                self.aborts.keep(group, key, set(others))
        word = Aborted(self.index, *key, cause.error, cause.text, cause.tensor)
        self.posts += [Mail(worker_peer(m), word) for m in others]

    def from_peer(self, peer: str, sender: int) -> bool:
        return is_worker_peer(peer, sender)

    def receive(self, piece: Piece, frame: Any) -> None:
        boxes = (self.mail,) if not piece.within else (group.mailbox for group in self.groups.values())
        for box in boxes:
            if box.group == piece.within:  # pieces of an aborted group are dropped
                box.receive(piece, frame)

    def hear(self, word: InputFailed | StallQuery | Noted | Ways | Aborted) -> None:
        if not {word.sender, self.index} <= set(word.group):
            raise ProtocolError(f"unexpected word about workers {listed(word.group)} from {word.sender} to {self.index}")
        if isinstance(word, Ways):
            self._announced(word)
        elif isinstance(word, Noted) and word.number < 0:
            self.aborts.known_to(word.sender, (word.group, -word.number))
        elif set(word.group) <= self.peers.keys():
            self._hear(word)
        elif isinstance(word, Aborted):  # all members learn of a lost one from the dispatcher; the sender frees its buffers
            self._answer(word, -word.number)

    def _announced(self, word: Ways) -> None:
        """A peer announces the transports that work for it."""
        if not set(word.ways) <= set(ORDER) or not set(word.near) <= set(word.group):
            raise ProtocolError(
                f"invalid transports of worker {word.sender}: expected some of {', '.join(ORDER)} and of the group"
            )
        if word.group in self.groups:
            self.groups[word.group].hear(word.sender, word.ways, word.near)
        elif set(word.group) <= self.peers.keys():
            self.early.announce(word)

    def _hear(self, word: InputFailed | StallQuery | Noted | Aborted) -> None:
        """A word about a collective of a group. Its transport was chosen with this worker, so the group has begun here."""
        members, number, begun = word.group, word.number, self.counts[word.group]
        if members not in self.groups and members not in self.aborts.last:
            raise ProtocolError(f"unexpected {type(word).__name__}: workers {listed(members)} have not begun a group here")
        match word:
            case Aborted():
                if number > self.aborts.generation(members):  # a late message does not abort later collectives
                    self.abort((members, max(number, begun)), cause_of(word.error, word.text, word.tensor))
                number = -number
            case Noted():
                if number == begun:
                    self.heard.setdefault(members, set()).add(word.sender)
                return
            case InputFailed():
                if number >= begun:
                    self.early.fail(word)
            case StallQuery():
                if (members, number) != self.at:
                    return
        self._answer(word, number)

    def _answer(self, word: InputFailed | StallQuery | Aborted, number: int) -> None:
        self.posts.append(Mail(worker_peer(word.sender), Noted(self.index, word.group, number)))

    def number(self, members: tuple[int, ...]) -> Key:
        """The key of the next collective of these workers. Drops the messages about earlier ones."""
        self.counts[members] += 1
        self.at = (members, self.counts[members])
        self.early.ended(members, self.at[1])
        self.heard.pop(members, None)
        return self.at

    def heard_in(self, key: Key) -> set[int]:
        """The peers that have answered in this collective."""
        return self.heard.get(key[0], set()) if key[1] == self.counts[key[0]] else set()

    def outgoing(self) -> list[Mail]:
        if self.overdue:
            self._tell_overdue()
        posts, self.posts = self.posts, []
        for group in self.groups.values():
            posts += group.mailbox.posts
            group.mailbox.posts.clear()
        return posts + self.mail.outgoing()

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> PendingCollective:
        return Undecided(self, client, kind, operands, tag) if self.unknown(kind) else self.choose(client, kind, operands, tag)

    def records(self, members: tuple[int, ...]) -> bool:
        return self.records_any and members in self.groups and self.groups[members].nccl

    def recorder(self, members: tuple[int, ...]) -> Recorder | None:
        group = self.groups.get(members)
        return group.recorder(self.engine) if group is not None and group.nccl and group.made is not None else None

    def unknown(self, kind: Kind) -> bool:
        """Whether the members have not agreed on a transport yet."""
        members = kind.settings["group"]
        group = self.groups.get(members)
        if group is not None and group.way:
            return False
        there = [self.peers[m] for m in members if m in self.peers]
        if any(peer.reached is None for peer in there):
            return True
        if len(there) < len(members) or any(not has_torch(peer) for peer in there):
            return False
        return not self._agree(group or self._begin(members))

    def silent(self, members: tuple[int, ...]) -> list[int]:
        """The workers that have not announced how they are reached, or their possible transports."""
        begun = members in self.groups
        heard = self.groups[members].peer_ways.keys() if begun else {word.sender for word in self.early.announced(members)}
        others = [m for m in members if m in self.peers and m != self.index]
        return [m for m in others if self.peers[m].reached is None or (m not in heard and begun)]

    def _begin(self, members: tuple[int, ...]) -> Group:
        made = self.groups[members] = Group(
            members, self.index, self.peers, self.host, self.waker, self.inbox, self.plain, self.aborts.generation(members)
        )
        for word in self.early.begin(members):
            made.hear(word.sender, word.ways, word.near)
        return made

    def _agree(self, group: Group) -> bool:
        """Send this worker's possible transports to the peers, once they are known. Returns whether a transport is chosen."""
        if group.own is not None and not group.announced:
            group.announced = True
            word = Ways(self.index, group.members, group.own, group.near[self.index])
            self.posts += [Mail(worker_peer(m), word) for m in group.members if m != self.index]
        group.decide()
        return bool(group.way)

    def choose(self, client: str, kind: Kind, operands: list[Any], tag: int) -> PendingCollective:
        if self.overdue:
            self._tell_overdue()
        if self._by_mail(kind):
            return self.mail.begin(client, kind, operands, tag)
        return _Collective(self, client, kind, operands, tag)

    def _by_mail(self, kind: Kind) -> bool:
        members = kind.settings["group"]
        if any(not has_torch(self.peers[m]) for m in members if m in self.peers):
            return True
        way = self.groups[members].way if members in self.groups else ""
        return way == "mail" or way == "hosts" and "sends" in kind.settings  # an exchange has no levels

    def _tell_overdue(self) -> None:
        """Tell the members of collectives that were given up before their transport was known, if it is known now."""
        overdue, self.overdue = self.overdue, []
        for given_up in overdue:
            members, cause, at = given_up.kind.settings["group"], given_up.late, self.at
            assert cause is not None
            if not set(members) <= self.peers.keys():
                continue  # the members know of the lost one
            if self.unknown(given_up.kind):
                self.overdue.append(given_up)
            elif self._by_mail(given_up.kind):
                self.mail.begin_failed(given_up.client, given_up.kind, cause, given_up.tag)
            else:
                self.abort(self.number(members), cause)
                self.at = at


class _Collective:
    """One collective of one worker: waits for its group, then for its work. A worker whose operand failed takes part
    nevertheless, since the peers wait for it, after they know not to use the results."""

    def __init__(self, collectives: GroupCollectives, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.collectives, self.client, self.kind, self.tag = collectives, client, kind, tag
        self.members: tuple[int, ...] = kind.settings["group"]
        self.key = collectives.number(self.members)
        self.operands = operands
        self.work: Work | None = None
        self.finish: Callable[[], list[Any]] = list
        self.failed: Exception | None = None
        self.since = 0.0  # time of the failure
        self.must_know: set[int] = set()  # peers that must acknowledge the failed input before this worker takes part
        self.cause: Broken | None = None
        cause = failed_operand(operands, tag)
        if cause is not None:
            self._input_failed(cause)

    def _input_failed(self, cause: Broken) -> None:
        """Tell the peers that wait for this worker's operand that it failed. None can finish before this worker has taken
        part."""
        self.cause, self.operands = cause, []
        concerned = [to for to, _, _ in self.kind.settings["sends"]] if "sends" in self.kind.settings else self.members
        self.must_know = set(concerned) - {self.collectives.index}
        self._send(self.must_know, InputFailed(self.collectives.index, *self.key, cause.error, cause.text, cause.tensor))

    def _send(self, to: Iterable[int], word: InputFailed | StallQuery) -> None:
        self.collectives.posts += [Mail(worker_peer(m), word) for m in to]

    def ask(self) -> None:
        self._send(set(self.members) - {self.collectives.index}, StallQuery(self.collectives.index, *self.key))

    def missing(self) -> list[int]:
        return sorted(set(self.members) - {self.collectives.index} - self.collectives.heard_in(self.key))

    def ready(self) -> bool:
        if not self._alive() or self.collectives.aborts.cause(self.key):
            return True
        if self.failed is None and self.work is None:
            self._begin()
        if self.failed is None and self.work is not None:
            try:
                if self.work.done():
                    self.work.wait()  # raises the error, if any
                    return True
            except Exception as failed:  # a kernel or the network may raise anything; the results carry the cause
                self._fail(failed, out_of_memory(failed) or not isinstance(failed, (RuntimeError, OSError)))
        return bool(self.collectives.aborts.cause(self.key)) or self.failed is not None and self._confirmed()

    def _fail(self, failed: Exception, local: bool) -> None:
        """The collective cannot continue. Peers are must_know of a local failure; of a network failure the dispatcher may know
        the cause, so it is awaited first."""
        if local:
            self.collectives.abort(
                self.key, failure(f"{self.kind.row.name} with workers {listed(self.members)}", failed, self.tag)
            )
        else:
            self.failed = failed

    def give_up(self, why: str) -> None:
        self.collectives.abort(self.key, Broken("RemoteError", why, self.tag))

    def _begin(self) -> None:
        """Take part, once the group is built and the peers that have to know of a failed input do."""
        group = self._group()
        if group is None or (group.made is None and group.failed is None):
            return
        if self.must_know - self.collectives.heard_in(self.key):
            return
        if group.failed is not None:
            self._fail(group.failed, False)
            return
        try:
            self._issue(group)
        except Exception as failed:  # a kernel, the allocator or the network may raise anything; peers are must_know
            if self.cause is None:
                self._input_failed(failure(f"{self.kind.row.name} with workers {listed(self.members)}", failed, self.tag))
            else:
                self._fail(failed, True)  # it cannot take part even without data

    def _confirmed(self) -> bool:
        """Whether a network failure is final. A broken connection mostly means a lost worker: wait for the dispatcher to report
        the loss, as collectives then continue with the remaining workers."""
        self.since = self.since or self.collectives.clock()
        if self._alive() and self.collectives.clock() - self.since > LOSS_TIMEOUT:
            text = f"{self.kind.row.name} with workers {listed(self.members)} failed: {self.failed}"
            self.collectives.abort(self.key, Broken("WorkerLost", text, self.tag))
            return True
        return not self._alive()

    def _alive(self) -> bool:
        return set(self.members) <= self.collectives.peers.keys()

    def _group(self) -> Group | None:
        """The group, if all its members are connected."""
        return self.collectives.groups.get(self.members)

    def _issue(self, group: Group) -> None:
        # References of the worker's table, of `operands` and of this call: no other value shares the tensor.
        alone = self.cause is not None or len(self.operands) == 1 and sys.getrefcount(self.operands[0]) <= 3
        engine = self.collectives.engine
        transport = group.transport(engine, self.client, self.kind, self.tag)
        part = Part(self.kind, self.collectives.index, torch_transport.TorchArrays(engine, group.nccl, alone), transport)
        self.work, self.finish = begin(part, self.operands, self.cause is not None)
        self.collectives.ways[transport.way] += 1

    def result(self) -> list[Any]:
        if not self._alive():
            lost = self.collectives.mail.lost or "one of them was lost"
            raise WorkerLost(f"{self.kind.row.name} with workers {listed(self.members)} cannot end: {lost}")
        cause = self.collectives.aborts.cause(self.key) or self.cause or self.collectives.early.failure(self.key)
        if cause is not None:
            raise OperandFailed(cause)
        finish, self.finish, self.work = self.finish, list, None  # drops this object's references to the moved arrays
        return finish()
