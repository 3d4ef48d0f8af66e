"""Collectives by mail, as conversations."""

from __future__ import annotations

import numpy as np
import pytest

from gt.errors import ProtocolError, WorkerLost
from gt.ops import TABLE, Kind, infer
from gt.spec import Spec, float32
from gt.transport.messages import Peer, Piece
from gt.worker.collectives import mail_transport
from gt.worker.collectives.mail import NO_TORCH, MailCollectives, PendingCollective
from gt.worker.collectives.mail_transport import OperandFailed
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
def test_mail_for_an_aborted_collective_is_not_for_the_next(talk: MailCollectives, early: bool) -> None:
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


def test_pieces_of_a_peer_for_collectives_that_never_begin_are_bounded(
    talk: MailCollectives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mail_transport, "PIECES", 8)
    for tag in range(8):
        piece(talk, 1, tag, 1.0)
    for tag in range(8, 100):
        with pytest.raises(ProtocolError, match="of which 8 wait"):
            piece(talk, 1, tag, 1.0)
    piece(talk, 2, 0, 1.0)  # the limit is each peer's
    assert {w: len(came) for w, came in talk.came.items()} == {1: 8, 2: 1} and talk.waiting == {1: 64, 2: 8}
    with pytest.raises(ProtocolError, match="dropped a piece"):
        talk.receive(Piece(2, "x" * 1000, 7), b"")


def test_bytes_of_a_peer_ahead_of_collectives_are_bounded_and_later_ones_stay_in_step(talk: MailCollectives) -> None:
    talk.limit = 1 << 20
    big = np.ones(1 << 17, "f4").tobytes()  # half of it
    talk.receive(Piece(1, "c", 1), big)
    talk.receive(Piece(1, "c", 2), big)
    with pytest.raises(ProtocolError, match="sent more than 1 MiB ahead"):
        piece(talk, 1, 3, 1.0)
    assert talk.waiting[1] < (1 << 20) + 200
    pair = infer(TABLE["all_reduce"], (Spec((1 << 17,), float32), int), ((0, 1), "sum"))
    for tag in (1, 2):
        assert talk.begin("c", pair, [np.ones(1 << 17, "f4")], tag).result()[0][0] == 2.0
    with pytest.raises(OperandFailed) as failed:
        begin(talk, adds(0, 1), 3).result()
    assert "sent more than 1 MiB ahead" in failed.value.cause.text and talk.waiting[1] == 0
    piece(talk, 1, 4, 1.0)
    assert begin(talk, adds(0, 1), 4).result()[0].tolist() == [2.0, 2.0]
    talk.limit = 4
    piece(talk, 1, 5, 1.0)  # a collective that waits for one piece takes it, whatever its size
    assert begin(talk, adds(0, 1), 5).result()[0].tolist() == [2.0, 2.0]


def test_pieces_of_lost_workers_are_dropped_with_the_next_change(talk: MailCollectives) -> None:
    piece(talk, 1, 7, 1.0)
    talk.meet(peers(0, 2), "worker w1 was lost")
    assert talk.came[1], "a collective that has begun may use it"
    talk.meet(peers(0, 2, 3), "")
    assert 1 not in talk.came and not talk.waiting[1]
