"""Collectives between members that read each other's memory: here all are in one process."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from gt.transport import process_memory  # noqa: E402
from gt.transport.process_memory import Inbox, PeerProcess, supported  # noqa: E402
from gt.worker.collectives import peer_memory as module  # noqa: E402
from gt.worker.collectives.members import reached  # noqa: E402
from gt.worker.collectives.peer_memory import PeerMemoryGroup  # noqa: E402

pytestmark = pytest.mark.skipif(not supported(), reason="takes a kernel by which processes may read each other's memory")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint8]
FOLD = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}


@pytest.fixture(scope="module")
def groups() -> Iterator[dict[int, list[PeerMemoryGroup]]]:
    inboxes = [Inbox() for _ in range(5)]
    yield {n: grouped(inboxes[:n]) for n in range(2, 6)}
    for inbox in inboxes:
        assert not inbox.words, "a word that nobody waited for"
        inbox.close()


def grouped(inboxes: list[Inbox]) -> list[PeerMemoryGroup]:
    members = tuple(range(len(inboxes)))
    offers = [inbox.offer() for inbox in inboxes]
    return [
        PeerMemoryGroup(members, r, {m: inboxes[r].reach(offers[m]) for m in members if m != r}, inboxes[r]) for r in members
    ]


def through(works: Sequence) -> None:
    """Each goes on as far as it can, in turns, until all are through."""
    for _ in range(4 * len(works)):
        done = [work.done() for work in works]
        if all(done):
            return
    raise AssertionError("they wait for each other")


def tensors(n: int, size: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 4, (size,), generator=made).to(dtype) + r for r in range(n)]


@given(
    n=st.integers(2, 5), size=st.integers(0, 40), how=st.sampled_from(sorted(FOLD)), dtype=st.sampled_from(DTYPES),
    chunk=st.sampled_from([1, 8, 16, 1 << 20]), small=st.sampled_from([0, 1 << 20]), seed=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None)
def test_every_member_has_the_same_sum(groups, n, size, how, dtype, chunk, small, seed) -> None:
    mine = tensors(n, size, dtype, seed)
    want = functools.reduce(FOLD[how], [t.clone() for t in mine])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        patch.setattr(module, "SMALL", small)
        through([group.reduce(t, how) for group, t in zip(groups[n], mine)])
    for t in mine:
        assert torch.equal(t, want)


@given(
    n=st.integers(2, 5), data=st.data(), how=st.sampled_from(sorted(FOLD)), dtype=st.sampled_from(DTYPES),
    chunk=st.sampled_from([1, 8, 1 << 20]),
)  # fmt: skip
@settings(deadline=None)
def test_each_member_has_the_sum_of_its_part(groups, n, data, how, dtype, chunk) -> None:
    sizes = [data.draw(st.integers(0, 9)) for _ in range(n)]
    terms = tensors(n, sum(sizes), dtype, data.draw(st.integers(0, 99)))
    before = [t.clone() for t in terms]
    want = functools.reduce(FOLD[how], terms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK", chunk)
        works, found = zip(*[group.scatter(t, sizes, how) for group, t in zip(groups[n], terms)])
        through(works)
    assert all(torch.equal(f(), w) for f, w in zip(found, want.split(sizes)))
    assert all(torch.equal(t, b) for t, b in zip(terms, before)), "an operand was changed"


@pytest.mark.parametrize("small", [0, 1 << 20])
def test_terms_are_added_in_the_groups_order(groups, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """In another order the ones would be lost or kept."""
    monkeypatch.setattr(module, "SMALL", small)
    terms = [torch.full((1000,), v) for v in (1e8, 1.0, -1e8, 1.0)]
    want = terms[0] + terms[1] + terms[2] + terms[3]
    through([group.reduce(t, "sum") for group, t in zip(groups[4], terms)])
    assert all(torch.equal(t, want) for t in terms)
    zeros = [torch.full((1000,), v) for v in (0.0, -0.0, -0.0)]
    through([group.reduce(t, "max") for group, t in zip(groups[3], zeros)])
    assert len({tuple(t.signbit().tolist()) for t in zeros}) == 1, "members have other bits"


@given(n=st.integers(2, 5), size=st.integers(0, 40), seed=st.integers(0, 99))
@settings(deadline=None)
def test_parts_are_gathered_and_spread(groups, n, size, seed) -> None:
    parts = tensors(n, size, torch.uint8, seed)
    outs = [torch.empty(n * size, dtype=torch.uint8) for _ in range(n)]
    through([g.gather(out, part) for g, out, part in zip(groups[n], outs, parts)])
    assert all(torch.equal(out, torch.cat(parts)) for out in outs)
    first = parts[0].clone()
    through([g.spread(part) for g, part in zip(groups[n], parts)])
    assert all(torch.equal(part, first) for part in parts)


@given(n=st.integers(2, 5), data=st.data())
@settings(deadline=None)
def test_each_gets_the_pieces_that_the_others_have_for_it(groups, n, data) -> None:
    sizes = [[data.draw(st.integers(0, 9)) for _ in range(n)] for _ in range(n)]  # from, to
    sent = [torch.arange(sum(row), dtype=torch.uint8) + 20 * r for r, row in enumerate(sizes)]
    taken = [[row[r] for row in sizes] for r in range(n)]
    outs = [torch.empty(sum(t), dtype=torch.uint8) for t in taken]
    through([g.swap(outs[r], sent[r], taken[r], sizes[r]) for r, g in enumerate(groups[n])])
    for r in range(n):
        assert torch.equal(outs[r], torch.cat([sent[s].split(sizes[s])[r] for s in range(n)]))


def test_nobody_goes_on_before_all_have_come(groups) -> None:
    a, b, c = (torch.ones(4) for _ in range(3))
    first, second, third = groups[3]
    works = [first.reduce(a, "sum"), second.reduce(b, "sum")]
    assert not works[0].done() and not works[1].done() and a.tolist() == [1.0] * 4
    works.append(third.reduce(c, "sum"))
    through(works)
    assert a.tolist() == b.tolist() == c.tolist() == [3.0] * 4


def test_one_that_cannot_read_breaks_off_for_all(groups, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EPERM, "not allowed")

    first, second = groups[2]
    works = [first.gather(torch.empty(8), torch.ones(4)), second.gather(torch.empty(8), torch.ones(4))]
    monkeypatch.setattr(first.peers[1], "read", refuse)
    with pytest.raises(OSError, match="not allowed"):
        works[0].done()
    with pytest.raises(OSError, match="another worker of the group broke off the collective"):
        works[1].done()
    monkeypatch.undo()
    x, y = torch.ones(4), torch.ones(4)
    through([first.reduce(x, "sum"), second.reduce(y, "sum")])  # and are in step again
    assert x.tolist() == [2.0] * 4


def test_a_process_that_is_not_the_one_meant_is_no_neighbour() -> None:
    inbox = Inbox()
    pid, door, place, secret = inbox.offer().split()
    found = inbox.reach(inbox.offer())
    assert found.pid == int(pid) and inbox.reach(inbox.offer()) is found
    with pytest.raises(OSError, match="is not the worker that was offered"):
        PeerProcess(f"{pid} {door} {place} {'0' * len(secret)}")
    with pytest.raises(OSError, match="cannot read"):
        PeerProcess(f"{pid} {door} 8 {secret}")
    inbox.keep(set())
    with pytest.raises(OSError):
        found.tell(1, 1, 0, 0)
    inbox.close()


def test_words_are_written_into_a_pipe_only(tmp_path: Path) -> None:
    """An offer may name any descriptor of a process, and bytes that lie anywhere in it."""
    inbox = Inbox()
    pid, _, place, secret = inbox.offer().split()
    with open(tmp_path / "kept", "w+") as file, pytest.raises(OSError, match="is not a pipe"):
        PeerProcess(f"{pid} {file.fileno()} {place} {secret}")
    inbox.close()


def test_members_are_reached_only_if_their_memory_can_be_read() -> None:
    mine, other = Inbox(), Inbox()
    offers = [mine.offer(), other.offer()]
    here = {1: os.getpid()}  # whichever process listens at the address of that member
    found = reached(0, offers, mine, here)
    assert found.keys() == {1}
    assert reached(0, [offers[0], offers[1][:-1] + "?"], mine, here) == {}
    assert reached(0, [offers[0], ""], mine, here) == {}
    assert reached(0, offers, None, here) == {}
    assert reached(0, offers, mine, {1: os.getppid()}) == {} and reached(0, offers, mine, {1: 0}) == {}
    assert reached(0, [*offers, ""], mine, here | {2: 0}).keys() == {1}, "another's host takes nothing from this one's"
    for inbox in (mine, other):
        inbox.close()


def test_words_that_nobody_waits_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "WORDS", 8)
    inbox = Inbox()
    try:
        own = PeerProcess(inbox.offer())
        for meeting in range(20):
            own.tell(1, meeting, 0, 5)
        inbox.drain()
        assert list(inbox.words) == [(1, meeting) for meeting in range(12, 20)]
        own.close()
    finally:
        inbox.close()
