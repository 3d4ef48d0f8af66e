"""Collectives in two levels, as conversations: by mail alone, and by memory within hosts with mail between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from gt.errors import RemoteError, WorkerLost
from gt.ops import TABLE, Kind, infer
from gt.spec import Spec, float32, split
from gt.transport.messages import Peer
from gt.worker.client_values import Broken
from gt.worker.collectives import two_level
from gt.worker.collectives.mail import NO_TORCH, MailCollectives, PendingCollective, listed
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.collectives.two_level import hosts_agreed, sets_by_mail
from gt.worker.engine.choose import make

ENGINE = make("numpy")
UNEVEN = ("b", "a", "b", "c", "a", "b")  # hosts of six workers, none of whose members lie together
SIX_HOSTS = tuple("abcdef"[i % 6] for i in range(48))
CROWDED = tuple("ab"[i % 2] for i in range(66))  # more on each host than one level has


def test_members_that_disagree_about_their_hosts_have_none() -> None:
    agreed = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
    assert hosts_agreed((0, 1, 2, 3), agreed) == ((0, 2), (1, 3))
    assert hosts_agreed((0, 1, 2, 3), agreed | {3: (3,)}) is None
    assert hosts_agreed((0, 1), {0: (0, 7), 1: (1,)}) is None, "a worker that is no member"
    assert hosts_agreed((0, 1), {0: (), 1: ()}) is None and hosts_agreed((0, 1), {0: (0,), 1: (1,)}) is None
    assert hosts_agreed((0, 1), {0: (0, 1), 1: (0, 1)}) is None, "one host has one level"


def test_connections_by_mail_grow_slower_than_the_square_of_the_members() -> None:
    assert sets_by_mail(tuple(range(16)), lambda m: "here") is None
    assert sets_by_mail((0, 1, 2), lambda m: str(m)) is None
    assert sets_by_mail((0, 1, 2, 3), lambda m: "ab"[m % 2]) == ((0, 2), (1, 3))
    for hosts in (lambda m: "here", str, lambda m: str(m % 3)):
        sets = sets_by_mail(tuple(range(200)), hosts)
        assert sets is not None and sorted(m for there in sets for m in there) == list(range(200))
        connections = sum(2 * (len(there) - 1) for there in sets) + len(sets) * (len(sets) - 1)
        assert connections < 2500, "39,800 with one level"


class MailNetwork:
    """Some workers that talk by mail, which this passes on. `crossed` counts pieces between hosts, `sent` all."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.hosts, self.crossed, self.sent = hosts, 0, 0
        self.members = tuple(range(len(hosts)))
        self.workers = [MailCollectives(ENGINE) for _ in hosts]
        for i, worker in enumerate(self.workers):
            worker.index = i
        self.meet(self.members)

    def meet(self, living: Sequence[int], lost: str = "") -> None:
        self.living = living
        peers = tuple(Peer(i, f"w{i}", "ipc://nowhere", self.hosts[i], reached=NO_TORCH) for i in living)
        for i in living:
            self.workers[i].meet(peers, lost)

    def begin(self, kinds: Sequence[Kind], operands: Sequence[list[Any]], tag: int) -> list[PendingCollective]:
        return [self.workers[i].begin("c", kinds[i], operands[i], tag) for i in self.living]

    def deliver(self, works: Sequence[PendingCollective] = ()) -> None:
        """Pass mail on until there is none; collectives that are ready are computed meanwhile."""
        while True:
            for work in works:
                work.ready()
            mail = [(i, m) for i in self.living for m in self.workers[i].outgoing()]
            if not mail:
                return
            for i, m in mail:
                to = int(m.peer[1:])
                self.sent, self.crossed = self.sent + 1, self.crossed + (self.hosts[i] != self.hosts[to])
                if to in self.living:
                    self.workers[to].receive(m.message, m.frames[0])

    def run(self, kinds: Sequence[Kind], operands: Sequence[list[Any]], tag: int = 7) -> list[Any]:
        works = self.begin(kinds, operands, tag)
        self.deliver(works)
        assert all(work.ready() for work in works), [work.missing() for work in works]
        return [work.result() for work in works]


def whole(name: str, shape: tuple[int, ...], *statics: Any) -> Kind:
    return infer(TABLE[name], (Spec(shape, float32), int), statics)


def sums(talk: MailNetwork) -> list[Kind]:
    return [whole("all_reduce", (3,), talk.members, "sum") for _ in talk.members]


@pytest.mark.parametrize("hosts", [UNEVEN, ("a", "a", "b", "b"), ("a",) * 5, tuple("abc"), SIX_HOSTS, CROWDED])
def test_every_collective_gives_the_same_in_two_levels_as_in_one(hosts: tuple[str, ...]) -> None:
    talk, n = MailNetwork(hosts), len(hosts)
    group, rng = talk.members, np.random.default_rng(0)
    terms = [rng.integers(-9, 9, (7, 2)).astype("f4") for _ in group]
    made = talk.run([whole("all_reduce", (7, 2), group, "max") for _ in group], [[t] for t in terms])
    assert all((out == np.max(terms, 0)).all() for (out,) in made)
    sizes = [split(7, n, i) for i in range(n)]
    scatters = [whole("reduce_scatter", (7, 2), group, "sum", 0, (size,)) for _, size in sizes]
    for (at, size), (out,) in zip(sizes, talk.run(scatters, [[t] for t in terms])):
        assert (out == np.sum(terms, 0)[at : at + size]).all()
    gathers = [whole("all_gather", (size, 2), group, 0, 7, ()) for _, size in sizes]
    parts = talk.run(gathers, [[terms[0][at : at + size]] for at, size in sizes])
    assert all((out == terms[0]).all() for (out,) in parts)
    sent = infer(TABLE["broadcast"], (Spec((7, 2), float32), int), (group, None, float32.code))
    taken = infer(TABLE["broadcast"], (int,), (group, (7, 2), float32.code))
    copies = talk.run([sent] + [taken] * (n - 1), [[terms[1]]] + [[]] * (n - 1))
    assert copies[0] == [] and all((out == terms[1]).all() for (out,) in copies[1:])
    levels = "mail in two levels" if 1 < len(set(hosts)) < n else "mail"
    assert all(worker.ways == {levels: 4} for worker in talk.workers)


def test_fewer_bytes_cross_between_hosts_than_in_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [[np.full(3, float(i), "f4")] for i in range(8)]
    levels = MailNetwork(("a", "b") * 4)
    first = levels.run(sums(levels), operands)
    flat = MailNetwork(("a", "b") * 4)
    monkeypatch.setattr("gt.worker.collectives.mail.sets_by_mail", lambda members, host: None)
    second = flat.run(sums(flat), operands)
    assert all(np.allclose(a[0], b[0]) for a, b in zip(first, second))
    assert (levels.crossed, flat.crossed) == (2, 32), "one whole tensor each way, against one for each pair of workers"


def test_between_six_hosts_of_eight_workers_one_tensor_crosses_for_each_pair_of_hosts() -> None:
    talk = MailNetwork(SIX_HOSTS)
    made = talk.run(sums(talk), [[np.full(3, float(i), "f4")] for i in talk.members])
    assert all(out.tolist() == [48 * 47 / 2] * 3 for (out,) in made)
    assert talk.crossed == 6 * 5 and talk.sent == 6 * 5 + 2 * (48 - 6), "2,256 in one level"


@pytest.mark.parametrize("broken", range(6))
def test_a_part_that_could_not_be_made_fails_the_collective_everywhere(broken: int) -> None:
    talk = MailNetwork(UNEVEN)
    cause = Broken("RemoteError", "no room for it", 3)
    works = talk.begin(sums(talk), [[cause if i == broken else np.ones(3, "f4")] for i in talk.members], 7)
    talk.deliver(works)
    for work in works:
        assert work.ready()
        with pytest.raises(OperandFailed) as failed:
            work.result()
        assert (failed.value.cause.text, failed.value.cause.tensor) == (cause.text, cause.tensor)
    [*after] = talk.run(sums(talk), [[np.ones(3, "f4")]] * 6, 8)
    assert all(out.tolist() == [6.0] * 3 for (out,) in after), "the next is in step"


def ended(works: Sequence[PendingCollective], talk: MailNetwork) -> list[type[Exception] | None]:
    """How each collective ends: the type of its error, or None."""
    found: dict[int, type[Exception] | None] = {}
    for _ in range(4):
        for i, work in enumerate(works):
            if i not in found and work.ready():
                try:
                    work.result()
                    found[i] = None
                except Exception as error:
                    found[i] = type(error)
        talk.deliver([work for i, work in enumerate(works) if i not in found])
    assert len(found) == len(works), "one of them waits for ever"
    return [found[i] for i in range(len(works))]


@pytest.mark.parametrize("gone", range(6))
def test_the_loss_of_a_member_ends_the_collective_of_all_others_and_no_later_one(gone: int) -> None:
    talk = MailNetwork(UNEVEN)
    kinds = sums(talk)
    works = [talk.workers[i].begin("c", kinds[i], [np.ones(3, "f4")], 7) for i in talk.members if i != gone]
    talk.deliver(works)
    talk.meet([i for i in talk.members if i != gone], f"worker w{gone} was lost")
    assert set(ended(works, talk)) <= {WorkerLost, OperandFailed}
    rest = tuple(talk.living)
    after = [talk.workers[i].begin("c", whole("all_reduce", (3,), rest, "sum"), [np.ones(3, "f4")], 8) for i in rest]
    talk.deliver(after)
    assert [work.ready() and work.result()[0].tolist() for work in after] == [[5.0] * 3] * 5


@pytest.mark.parametrize("late", range(6))
def test_one_that_gives_up_leaves_the_others_in_step(late: int) -> None:
    talk = MailNetwork(UNEVEN)
    operands = [[np.ones(3, "f4")] for _ in talk.members]
    works = talk.begin(sums(talk), operands, 7)
    works[late].give_up("it took too long")
    assert works[late].ready()
    with pytest.raises(RemoteError, match="too long"):
        works[late].result()
    talk.deliver([work for i, work in enumerate(works) if i != late])
    for i, work in enumerate(works):
        if i != late:
            assert work.ready()
            try:
                work.result()
            except OperandFailed as failed:
                assert "too long" in failed.cause.text
    after = talk.run(sums(talk), operands, 8)
    assert all(out.tolist() == [6.0] * 3 for (out,) in after)


def test_a_message_names_a_few_of_many_workers() -> None:
    assert listed((0, 1, 2)) == "[0, 1, 2]"
    assert listed(range(200)).endswith("14, 15, and 184 more]")


def test_a_group_is_wide_beyond_the_size_of_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_level, "WIDE", 4)
    talk = MailNetwork(("a",) * 9)
    made = talk.run(sums(talk), [[np.full(3, float(i), "f4")] for i in talk.members])
    assert all(out.tolist() == [36.0] * 3 for (out,) in made) and talk.workers[0].ways == {"mail in two levels": 1}
    assert talk.sent == 2 * 6 + 3 * 2, "to each first member and back, and between those"


def on_hosts(hosts: Sequence[Sequence[int]]) -> tuple[list[Any], Callable[[], None], list[Any]]:
    """The transports of members on such hosts, all of this process: a function passes mail on between their first members."""
    torch = pytest.importorskip("torch")
    from gt.transport.process_memory import Inbox, supported
    from gt.worker.collectives.mail_transport import Mailbox, MailTransport
    from gt.worker.collectives.peer_memory import PeerMemoryGroup
    from gt.worker.collectives.torch_arrays import TorchMail
    from gt.worker.collectives.two_level import TwoLevel

    if not supported():
        pytest.skip("takes a kernel by which processes may read each other's memory")
    ranks = tuple(map(tuple, hosts))
    n, kind = sum(map(len, ranks)), whole("all_reduce", (3,), (0, 1), "sum")
    boxes, inboxes = [Mailbox(i, 1) for i in range(n)], [Inbox() for _ in range(n)]
    offers, firsts, made = [inbox.offer() for inbox in inboxes], tuple(there[0] for there in ranks), []
    for i in range(n):
        own = next(there for there in ranks if i in there)
        peers = {r: inboxes[i].reach(offers[m]) for r, m in enumerate(own) if m != i}
        inside = PeerMemoryGroup(own, own.index(i), peers, inboxes[i]) if peers else None
        between = TorchMail(MailTransport(boxes[i], ENGINE, "c", kind, 7, None, firsts)) if i in firsts else None
        made.append(TwoLevel("hosts", ranks, i, inside, between, lambda like, n: torch.empty(n, dtype=like.dtype)))

    def deliver() -> None:
        for box in boxes:
            posts, box.posts = box.posts, []
            for mail in posts:
                boxes[int(mail.peer[1:])].receive(mail.message, mail.frames[0])

    return made, deliver, inboxes


@pytest.mark.parametrize("size", [0, 5, 40_000])
def test_hosts_reduce_in_memory_and_between_them_by_mail(size: int) -> None:
    torch = pytest.importorskip("torch")
    made, deliver, inboxes = on_hosts([(0, 3), (1, 2, 4), (5,)])
    rng = torch.Generator().manual_seed(0)
    terms = [torch.randint(-9, 9, (size,), generator=rng).float() for _ in made]
    want, first = torch.stack(terms).sum(0), terms[0].clone()
    rows = [torch.full((4,), i, dtype=torch.uint8) for i in range(6)]
    wholes, outs = [t.clone() for t in terms], [torch.zeros(24, dtype=torch.uint8) for _ in made]
    for begin in (
        lambda i, m: m.reduce(wholes[i], "sum"),
        lambda i, m: m.gather(outs[i], rows[i]),
        lambda i, m: m.spread(terms[i]),
    ):
        works = [begin(i, m) for i, m in enumerate(made)]
        for _ in range(40):
            for work in works:
                work.done()
            deliver()
        assert all(work.done() for work in works), "they wait for each other"
    assert all(torch.equal(t, want) for t in wholes) and all(torch.equal(t, first) for t in terms)
    assert all(out.tolist() == [i for i in range(6) for _ in range(4)] for out in outs)
    for inbox in inboxes:
        assert not inbox.words
        inbox.close()
