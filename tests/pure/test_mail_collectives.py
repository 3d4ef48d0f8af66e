"""Collectives by mail, as conversations."""

from __future__ import annotations

import numpy as np
import pytest

from gt.errors import WorkerLost
from gt.ops import TABLE, Kind, infer
from gt.spec import Spec, float32
from gt.transport.messages import Peer, Piece
from gt.worker.collectives.mail import NO_TORCH, MailCollectives, PendingCollective
from gt.worker.engine.choose import make


def peers(*indices: int) -> tuple[Peer, ...]:
    return tuple(Peer(i, f"w{i}", "ipc://nowhere", "here", reached=NO_TORCH) for i in indices)


def adds(*group: int) -> Kind:
    return infer(TABLE["all_reduce"], (Spec((2,), float32), int), (group, "sum"))


def piece(talk: MailCollectives, sender: int, tag: int, value: float) -> None:
    talk.receive(Piece(sender, "c", tag), np.full(2, value, "f4").tobytes())


@pytest.fixture
def talk() -> MailCollectives:
    made = MailCollectives(make("numpy"))
    made.index = 0
    made.meet(peers(0, 1, 2), "")
    return made


def begin(talk: MailCollectives, kind: Kind, tag: int) -> PendingCollective:
    return talk.begin("c", kind, [np.ones(2, "f4")], tag)


@pytest.mark.parametrize("early", [True, False])
def test_what_comes_for_a_collective_that_was_given_up_is_not_for_the_next(talk: MailCollectives, early: bool) -> None:
    first = begin(talk, adds(0, 1, 2), 7)
    if early:
        piece(talk, 2, 7, 5.0)
    talk.meet(peers(0, 2), "worker w1 was lost")
    assert first.ready()
    with pytest.raises(WorkerLost, match="w1 was lost"):
        first.result()
    second = begin(talk, adds(0, 2), 8)
    if not early:
        piece(talk, 2, 7, 5.0)
    assert not second.ready()
    piece(talk, 2, 8, 3.0)
    assert second.ready() and second.result()[0].tolist() == [4.0, 4.0]


def test_a_piece_of_one_that_has_gone_since_is_still_good(talk: MailCollectives) -> None:
    wait = begin(talk, adds(0, 1, 2), 7)
    piece(talk, 1, 7, 1.0)
    talk.meet(peers(0, 2), "worker w1 was lost")
    piece(talk, 2, 7, 1.0)
    assert wait.ready() and wait.result()[0].tolist() == [3.0, 3.0]
