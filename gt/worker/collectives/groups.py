"""Collectives of workers that have PyTorch. Nothing here blocks: groups are built in threads of their own, torch.distributed
ends its work in threads of its own, and both ring `waker`; on one host, peers leave word in the `inbox`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gt.errors import ProtocolError, WorkerLost
from gt.ops import Kind
from gt.transport.messages import Aborted, InputFailed, Mail, Noted, Peer, Piece, Reached, StallQuery, Store, Ways
from gt.transport.process_memory import Inbox
from gt.worker.client_values import Broken, failure, out_of_memory
from gt.worker.collectives.aborts import Aborts, Key
from gt.worker.collectives.mail import MailCollectives, PendingCollective, Undecided, failed_operand, is_worker_peer, listed
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.collectives.ops import Part, Work, begin
from gt.worker.collectives.process_group import Group, transports
from gt.worker.engine import Engine
from gt.worker.peer_names import worker_peer

PATIENCE = 5.0  # seconds for the dispatcher to notice a worker that its peers have noticed


def has_torch(peer: Peer) -> bool:
    return peer.reached is None or peer.reached.torch


def gpu_of(engine: Engine) -> str:
    """Which GPU an engine computes on; "" where that is none."""
    return "" if engine.device == "cpu" else transports().gpu_of(engine)


class GroupCollectives:
    """The way of workers that have PyTorch. Sets of workers that one without it belongs to talk by mail."""

    def __init__(
        self, engine: Engine, host: str, waker: Callable[[], None], clock: Callable[[], float], inbox: Inbox | None = None,
        plain: bool = False, label: str = "",
    ) -> None:  # fmt: skip
        self.engine, self.host, self.waker, self.clock, self.inbox, self.plain = engine, host, waker, clock, inbox, plain
        self.label = label  # of its host, where it was given one
        self.mail = MailCollectives(engine)
        self.ways, self.hosts = self.mail.ways, self.mail.hosts
        self.groups: dict[tuple[int, ...], Group] = {}
        self.posts: list[Mail] = []
        self.announced = False  # whether the others were told how this worker is reached
        self.store: Any = None
        self.said: dict[tuple[int, ...], dict[int, Ways]] = {}  # what others can do, of groups not begun here
        self.aborts = Aborts()
        self.counts: Counter[tuple[int, ...]] = Counter()  # collectives begun, by members: all of them count alike
        self.at: Key = ((), 0)  # the last one begun
        self.failed_inputs: dict[Key, Broken] = {}  # to which others have no part to give
        self.heard: dict[Key, set[int]] = {}  # who has answered
        self.overdue: list[Undecided] = []  # given up before their way was known: the others are still to be told

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
                self.store, at = transports().keep_store(self.host)
            offer = self.inbox.offer() if self.inbox is not None else ""
            self.posts.append(Mail("", Store(Reached(at, gpu_of(self.engine), offer, host=self.label))))
        if self.inbox is not None:
            self.inbox.keep({w.reached.memory for w in workers if w.reached is not None and w.reached.torch})
        for members in [m for m in self.said if not set(m) <= self.peers.keys()]:
            del self.said[members]
        for members in [m for m in self.groups if not set(m) <= self.peers.keys()]:
            self.abort((members, self.counts[members]), Broken("WorkerLost", lost, 0))
        self.aborts.meet(set(self.peers))
        for said in (self.failed_inputs, self.heard):
            for key in [k for k in said if not set(k[0]) <= self.peers.keys()]:
                del said[key]

    def abort(self, key: Key, cause: Broken) -> None:
        """The collectives up to this one are given up, and all members are told. The next one needs another group."""
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
            if box.group == piece.within:  # what is of a group that was given up goes nowhere
                box.receive(piece, frame)

    def hear(self, word: InputFailed | StallQuery | Noted | Ways | Aborted) -> None:
        if not {word.sender, self.index} <= set(word.group):
            raise ProtocolError(f"unexpected word about workers {listed(word.group)} from {word.sender} to {self.index}")
        if isinstance(word, Ways):
            if word.group in self.groups:
                self.groups[word.group].hear(word.sender, word.ways, word.near)
            elif set(word.group) <= self.peers.keys():
                self.said.setdefault(word.group, {})[word.sender] = word
            return
        key = (word.group, word.number)
        if isinstance(word, Aborted):
            self.posts.append(Mail(worker_peer(word.sender), Noted(self.index, word.group, -word.number)))
            known = word.number <= self.aborts.generation(word.group)  # it may come late: what was begun since goes on
            if not known and set(word.group) <= self.peers.keys():  # with a lost member, all know
                cause = Broken(word.error, word.text, word.tensor)
                self.abort((word.group, max(word.number, self.counts[word.group])), cause)
            return
        if isinstance(word, Noted) and word.number < 0:
            self.aborts.known_to(word.sender, (word.group, -word.number))
            return
        if isinstance(word, Noted):
            self.heard.setdefault(key, set()).add(word.sender)
            return
        if isinstance(word, InputFailed):
            self.failed_inputs[key] = Broken(word.error, word.text, word.tensor)
        elif key != self.at:
            return
        self.posts.append(Mail(worker_peer(word.sender), Noted(self.index, *key)))

    def number(self, members: tuple[int, ...]) -> Key:
        """The next collective of these workers. What was said of earlier ones is over."""
        self.counts[members] += 1
        self.at = (members, self.counts[members])
        for said in (self.failed_inputs, self.heard):
            for key in [k for k in said if k[0] == members and k[1] < self.at[1]]:
                del said[key]
        return self.at

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

    def unknown(self, kind: Kind) -> bool:
        """Whether it is open yet by which way the members go."""
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
        """Which of these workers have not said yet how they are reached, or what they can do."""
        heard = self.groups[members].said if members in self.groups else self.said.get(members, {})
        others = [m for m in members if m in self.peers and m != self.index]
        return [m for m in others if self.peers[m].reached is None or (m not in heard and members in self.groups)]

    def _begin(self, members: tuple[int, ...]) -> Group:
        made = self.groups[members] = Group(
            members, self.index, self.peers, self.host, self.waker, self.inbox, self.plain, self.aborts.generation(members)
        )
        for word in self.said.pop(members, {}).values():
            made.hear(word.sender, word.ways, word.near)
        return made

    def _agree(self, group: Group) -> bool:
        """Tell the others what this worker can do, once that is known. Whether all have told."""
        if group.own is not None and not group.told:
            group.told = True
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
        """Tell the members of collectives that were given up before their way was known, where it is known now."""
        overdue, self.overdue = self.overdue, []
        for given_up in overdue:
            members, cause, at = given_up.kind.settings["group"], given_up.late, self.at
            assert cause is not None
            if not set(members) <= self.peers.keys():
                continue  # all know that it cannot end
            if self.unknown(given_up.kind):
                self.overdue.append(given_up)
            elif self._by_mail(given_up.kind):
                self.mail.begin_failed(given_up.client, given_up.kind, cause, given_up.tag)
            else:
                self.abort(self.number(members), cause)
                self.at = at


class _Collective:
    """One collective of one worker: waits for its group, then for its work. One whose part could not be made must take part
    all the same, since the others count on it; it does so when they know not to use what comes of it."""

    def __init__(self, collectives: GroupCollectives, client: str, kind: Kind, operands: list[Any], tag: int) -> None:
        self.collectives, self.client, self.kind, self.tag = collectives, client, kind, tag
        self.members: tuple[int, ...] = kind.settings["group"]
        self.key = collectives.number(self.members)
        self.operands = operands
        self.work: Work | None = None
        self.finish: Callable[[], list[Any]] = list
        self.failed: Exception | None = None
        self.since = 0.0  # when it failed
        self.told: set[int] = set()  # those that are to know first
        self.cause: Broken | None = None
        cause = failed_operand(operands, tag)
        if cause is not None:
            self._input_failed(cause)

    def _input_failed(self, cause: Broken) -> None:
        """Tell those that wait for what this worker does not have. None of them can be through before it has taken part."""
        self.cause, self.operands = cause, []
        concerned = [to for to, _, _ in self.kind.settings["sends"]] if "sends" in self.kind.settings else self.members
        self.told = set(concerned) - {self.collectives.index}
        self._say(self.told, InputFailed(self.collectives.index, *self.key, cause.error, cause.text, cause.tensor))

    def _say(self, to: Iterable[int], word: InputFailed | StallQuery) -> None:
        self.collectives.posts += [Mail(worker_peer(m), word) for m in to]

    def ask(self) -> None:
        self._say(set(self.members) - {self.collectives.index}, StallQuery(self.collectives.index, *self.key))

    def missing(self) -> list[int]:
        return sorted(set(self.members) - {self.collectives.index} - self.collectives.heard.get(self.key, set()))

    def ready(self) -> bool:
        if not self._alive() or self.collectives.aborts.cause(self.key):
            return True
        if self.failed is None and self.work is None:
            self._begin()
        if self.failed is None and self.work is not None:
            try:
                if self.work.done():
                    self.work.wait()  # this only raises what went wrong
                    return True
            except Exception as failed:  # a kernel or the network may fail in any way; the tensor carries the cause
                self._fail(failed, out_of_memory(failed) or not isinstance(failed, (RuntimeError, OSError)))
        return bool(self.collectives.aborts.cause(self.key)) or self.failed is not None and self._confirmed()

    def _fail(self, failed: Exception, local: bool) -> None:
        """It cannot go on. What failed here the others must be told; what the network did the dispatcher may know better."""
        if local:
            self.collectives.abort(
                self.key, failure(f"{self.kind.row.name} with workers {listed(self.members)}", failed, self.tag)
            )
        else:
            self.failed = failed

    def give_up(self, why: str) -> None:
        self.collectives.abort(self.key, Broken("RemoteError", why, self.tag))

    def _begin(self) -> None:
        """Take part, once there is a group, and those that are to know something first know it."""
        group = self._group()
        if group is None or (group.made is None and group.failed is None):
            return
        if self.told - self.collectives.heard.get(self.key, set()):
            return
        if group.failed is not None:
            self._fail(group.failed, False)
            return
        try:
            self._issue(group)
        except Exception as failed:  # a kernel, the allocator or the network may fail in any way; peers are told
            if self.cause is None:
                self._input_failed(failure(f"{self.kind.row.name} with workers {listed(self.members)}", failed, self.tag))
            else:
                self._fail(failed, True)  # it cannot even take part with nothing to give

    def _confirmed(self) -> bool:
        """A connection that broke most often means a worker that is gone: the dispatcher should be the one to say so, since
        whoever is told goes on at once with those that it says are there."""
        self.since = self.since or self.collectives.clock()
        if self._alive() and self.collectives.clock() - self.since > PATIENCE:
            text = f"{self.kind.row.name} with workers {listed(self.members)} failed: {self.failed}"
            self.collectives.abort(self.key, Broken("WorkerLost", text, self.tag))
            return True
        return not self._alive()

    def _alive(self) -> bool:
        return set(self.members) <= self.collectives.peers.keys()

    def _group(self) -> Group | None:
        """The group, if its members are all there."""
        return self.collectives.groups.get(self.members)

    def _issue(self, group: Group) -> None:
        # Held by the worker's table, by `operands` and by the call that counts: nobody else computes with it.
        alone = self.cause is not None or len(self.operands) == 1 and sys.getrefcount(self.operands[0]) <= 3
        engine = self.collectives.engine
        moves = group.moves(engine, self.client, self.kind, self.tag)
        part = Part(self.kind, self.collectives.index, transports().TorchArrays(engine, group.nccl, alone), moves)
        self.work, self.finish = begin(part, self.operands, self.cause is not None)
        self.collectives.ways[moves.way] += 1

    def result(self) -> list[Any]:
        if not self._alive():
            lost = self.collectives.mail.lost or "one of them went away"
            raise WorkerLost(f"{self.kind.row.name} with workers {listed(self.members)} cannot end: {lost}")
        cause = self.collectives.aborts.cause(self.key) or self.cause or self.collectives.failed_inputs.get(self.key)
        if cause is not None:
            raise OperandFailed(cause)
        finish, self.finish, self.work = self.finish, list, None  # what was moved is its tensors' alone from here on
        return finish()
