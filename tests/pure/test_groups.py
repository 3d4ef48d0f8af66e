"""The transport that a worker with PyTorch chooses for a collective, without a socket."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch

from gt.errors import ProtocolError
from gt.ops import TABLE, infer
from gt.spec import Spec, float32
from gt.transport.messages import Aborted, InputFailed, Noted, Peer, Piece, Reached, Ways
from gt.worker.client_values import Broken
from gt.worker.collectives import early_words, groups
from gt.worker.collectives.groups import GroupCollectives
from gt.worker.collectives.mail import NO_TORCH
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.collectives.process_group import Group
from gt.worker.engine.torch.engine import TorchEngine


def peer(index: int, reached: Reached | None) -> Peer:
    return Peer(index, f"w{index}", "ipc://nowhere", "here", reached=reached)


def grouped(reached: Reached | None) -> GroupCollectives:
    talk = GroupCollectives(TorchEngine("cpu"), "127.0.0.1", lambda: None, float)
    talk.index, talk.announced = 0, True
    talk.meet((peer(0, Reached("127.0.0.1:1")), peer(1, reached)), "")
    return talk


def test_a_mate_that_has_not_said_how_it_is_reached_is_waited_for() -> None:
    talk = grouped(None)
    kind = infer(TABLE["all_reduce"], (Spec((2,), float32), int), ((0, 1), "sum"))
    wait = talk.begin("c", kind, [torch.ones(2)], 7)
    assert not wait.ready() and not talk.outgoing() and not talk.groups and wait.missing() == [1]
    talk.meet((peer(0, Reached("127.0.0.1:1")), peer(1, NO_TORCH)), "")  # it turns out to have no PyTorch
    assert not wait.ready() and not talk.groups and wait.missing() == [1]
    [mail] = talk.outgoing()
    assert mail.peer == "#1" and mail.message == Piece(0, "c", 7)
    talk.receive(Piece(1, "c", 7), torch.full((2,), 4.0).numpy().tobytes())
    assert wait.ready() and wait.result()[0].tolist() == [5.0, 5.0] and talk.ways == {"mail": 1}


def test_a_collective_given_up_before_its_way_was_known_leaves_the_others_in_step() -> None:
    talk = grouped(None)
    kind = infer(TABLE["all_reduce"], (Spec((2,), float32), int), ((0, 1), "sum"))
    first = talk.begin("c", kind, [torch.ones(2)], 7)
    first.give_up("it took too long")
    assert first.ready()
    with pytest.raises(OperandFailed):
        first.result()
    second = talk.begin("c", kind, [torch.ones(2)], 8)
    assert not second.ready() and not talk.outgoing()
    talk.meet((peer(0, Reached("127.0.0.1:1")), peer(1, NO_TORCH)), "")
    assert not second.ready()
    assert [(m.message.tag, m.message.why) for m in talk.outgoing()] == [(7, "it took too long"), (8, "")]
    talk.receive(Piece(1, "c", 7), torch.full((2,), 9.0).numpy().tobytes())
    talk.receive(Piece(1, "c", 8), torch.full((2,), 4.0).numpy().tobytes())
    assert second.ready() and second.result()[0].tolist() == [5.0, 5.0] and not talk.overdue


def test_word_of_a_collective_that_is_known_to_be_given_up_ends_no_later_one() -> None:
    """A member learns that from the broken connection, too, and begins others before the word comes."""
    talk, members = grouped(Reached("127.0.0.1:1")), (0, 1)
    second = [talk.number(members) for _ in range(2)][-1]
    talk.abort(second, Broken("OutOfMemory", "no room", 1))
    later = [talk.number(members) for _ in range(2)]
    talk.hear(Aborted(1, *second, "OutOfMemory", "no room", 1))
    assert [talk.aborts.cause(key) for key in later] == [None, None]
    talk.hear(Aborted(1, *later[0], "OutOfMemory", "no room", 1))  # this one is news, and the last that was begun goes with it
    assert all(talk.aborts.cause(key) is not None for key in later)


@pytest.mark.parametrize("word", [
    Aborted(2, (0, 1), 1, "RemoteError", "odd", 1), InputFailed(2, (0, 1), 1, "RemoteError", "odd", 1),
    Ways(2, (0, 1), ("mail",)), Noted(2, (0, 1), 1), Aborted(1, (1, 2), 1, "RemoteError", "odd", 1),
    Ways(1, (1, 2), ("memory",)),
])  # fmt: skip
def test_words_of_a_peer_outside_a_group_are_ignored(word: Any) -> None:
    talk = grouped(Reached("127.0.0.1:1"))
    with pytest.raises(ProtocolError, match="unexpected word about workers"):
        talk.hear(word)
    assert not (talk.early.ways or talk.heard or talk.early.failures or talk.aborts.last or talk.outgoing())


def kept(talk: GroupCollectives) -> int:
    """Words of peers that are kept, and the mail that they cause."""
    early = talk.early
    words = sum(map(len, (*early.ways.values(), *early.failures.values(), *talk.heard.values())))
    return words + len(talk.aborts.last) + len(talk.outgoing())


def refused(talk: GroupCollectives, words: Any) -> int:
    count = 0
    for word in words:
        try:
            talk.hear(word)
        except ProtocolError:
            count += 1
    return count


def test_words_of_a_peer_about_groups_that_never_begin_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_words, "GROUPS", 8)
    talk = grouped(Reached("127.0.0.1:1"))
    talk.meet(tuple(peer(i, Reached("127.0.0.1:1")) for i in range(12)), "")
    talk.outgoing()
    every = [(0, 1, *rest) for rest in permutations(range(2, 12), 2)]
    assert refused(talk, (Ways(1, group, ("memory",)) for group in every)) == len(every) - 8 and kept(talk) == 8
    assert refused(talk, [Ways(2, (0, 1, 2), ("memory",))]) == 0, "the limit is each peer's"
    assert refused(talk, [Ways(2, (0, 2), ("x" * 1000,)), Ways(2, (0, 2), (), (7,))]) == 2, "no such way, no such member"
    told = [word(1, group, 1, "RemoteError", "odd", 1) for word in (InputFailed, Aborted) for group in every]
    assert refused(talk, [*told, *(Noted(1, group, 1) for group in every)]) == 3 * len(every) and kept(talk) == 9


def test_words_of_a_peer_about_collectives_that_never_begin_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_words, "FAILURES", 8)
    monkeypatch.setattr(Group, "_start", lambda self, what: None)
    talk, members = grouped(Reached("127.0.0.1:1")), (0, 1)
    talk._begin(members)
    first = talk.number(members)
    for number in range(100):
        talk.hear(Noted(1, members, number))
    assert kept(talk) == 1 and talk.heard_in(first) == {1}
    words = [InputFailed(1, members, number, "RemoteError", "x" * 100_000, 1) for number in range(100)]
    assert refused(talk, words) == 100 - 1 - 8  # the first is of a collective that has ended
    assert len(talk.early.failures[members, 1]) == 8 and len(talk.early.failure(first).text) == early_words.TEXT  # type: ignore[union-attr]
    causes = [talk.early.failure(talk.number(members)) for _ in range(8)]
    assert [cause is None for cause in causes] == [False] * 7 + [True] and not talk.early.failures


def test_words_of_lost_workers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "_start", lambda self, what: None)
    talk = grouped(Reached("127.0.0.1:1"))
    talk.meet(tuple(peer(i, Reached("127.0.0.1:1")) for i in range(3)), "")
    for other in (1, 2):
        talk._begin((0, other))
        talk.number((0, other))
        talk.hear(InputFailed(other, (0, other), 1, "RemoteError", "odd", 1))
        talk.hear(Ways(other, (0, 1, 2), ("memory",)))
    talk.meet(tuple(peer(i, Reached("127.0.0.1:1")) for i in range(2)), "worker w2 was lost")
    assert talk.early.failures.keys() == {((0, 1), 1)} and talk.early.ways == {1: {}} and talk.counts == {(0, 1): 1}


def test_a_mate_that_is_gone_is_not_waited_for() -> None:
    talk = grouped(None)
    kind = infer(TABLE["all_reduce"], (Spec((2,), float32), int), ((0, 1), "sum"))
    wait = talk.begin("c", kind, [torch.ones(2)], 7)
    talk.meet((peer(0, Reached("127.0.0.1:1")),), "worker w1 is gone")
    assert wait.ready()
    try:
        wait.result()
    except Exception as lost:
        assert type(lost).__name__ == "WorkerLost" and "w1 is gone" in str(lost)
    else:
        raise AssertionError("a collective without one of its members gave a result")


def decided(own: tuple[str, ...], *others: tuple[str, ...]) -> str:
    """The way of a group whose first member can go `own`, and the others these."""
    group = Group.__new__(Group)
    group.members, group.own, group.way = tuple(range(len(others) + 1)), own, ""
    group.peer_ways, group._start = {}, lambda what: None  # type: ignore[method-assign]
    group.near, group.hosts = {0: (0,)}, None
    for member, ways in enumerate(others, 1):
        group.decide()
        assert group.way == ""
        group.hear(member, ways, (member,))
    group.decide()
    return group.way


def test_members_go_the_best_way_that_all_of_them_can() -> None:
    every = ("nccl here", "nccl", "memory", "gloo here", "gloo")
    assert decided(every, every) == "nccl here" and decided(every, every[1:]) == "nccl"
    assert decided(("memory",), ("memory",), ("memory",)) == "memory"
    assert decided(("memory",), ("memory", "gloo"), ("gloo",)) == "mail"
    assert decided(("gloo here", "gloo"), ("gloo",)) == "gloo" and decided(("gloo",), ()) == "mail"


def test_nothing_listens_for_others_unless_plain_collectives_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    transport = groups.torch_transport
    monkeypatch.setattr(transport, "keep_store", lambda host: (kept.append(host), f"{host}:1"))
    for host, plain in (("127.0.0.1", False), ("127.0.0.1", True), ("10.0.0.7", False), ("10.0.0.7", True)):
        talk = GroupCollectives(TorchEngine("cpu"), host, lambda: None, float, None, plain)
        talk.index = 0
        talk.meet((peer(0, ""), peer(1, "")), "")
        [mail] = talk.outgoing()
        assert mail.message.reached == Reached("10.0.0.7:1" if (host, plain) == ("10.0.0.7", True) else "")
    assert kept == ["10.0.0.7"]
