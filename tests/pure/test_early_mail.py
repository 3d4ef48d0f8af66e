"""Mail of workers that the dispatcher has not announced to this one yet: kept for their arrival, within limits."""

from __future__ import annotations

from typing import Any

import pytest

from gt.transport.auth import NO_KEYS
from gt.transport.messages import Peer, Piece
from gt.worker import peer_sockets
from gt.worker.peer_sockets import PeerSockets


@pytest.fixture
def sockets() -> PeerSockets:
    return PeerSockets("token", NO_KEYS)


def piece(tag: int, sender: int = 1) -> Piece:
    return Piece(sender, "c", tag)


def test_early_messages_are_bounded_in_number(sockets: PeerSockets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sockets, "EARLY", 8)
    assert [sockets.keep_early("w", piece(tag), ()) for tag in range(20)] == [True] * 8 + [False] * 12
    assert len(sockets.early) == 8


def test_early_messages_are_bounded_in_bytes(sockets: PeerSockets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_sockets, "EARLY_BYTES", 1000)
    frames = [(b"x" * 600,), (b"x" * 300, b"x" * 101), (b"x" * 300, b"x" * 100), (b"x",), ()]
    kept = [sockets.keep_early("w", piece(tag), each) for tag, each in enumerate(frames)]
    assert kept == [True, False, True, False, True], "1,000 bytes, and mail without bytes"
    assert sum(len(f) for _, _, those in sockets.early for f in those) == 1000


def test_an_announced_worker_gets_its_early_messages_in_order_and_makes_room(
    sockets: PeerSockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_sockets, "EARLY", 4)
    for tag, token in enumerate(("a", "b", "a", "b")):
        assert sockets.keep_early(token, piece(tag), (b"x",))
    heard: list[int] = []

    def receive(token: str, message: Any, frames: tuple) -> None:
        """As a worker's shell does: worker a is announced, b is not."""
        if token == "a":
            heard.append(message.tag)
        else:
            assert sockets.keep_early(token, message, frames)

    sockets.meet({1: Peer(1, "a", "ipc://a", "here")}, receive)
    assert heard == [0, 2] and [message.tag for _, message, _ in sockets.early] == [1, 3]
    assert sockets.keep_early("b", piece(4), ()) and sockets.keep_early("b", piece(5), ())
    assert not sockets.keep_early("b", piece(6), ())


def test_mail_of_a_lost_worker_is_not_taken_for_early_mail(sockets: PeerSockets) -> None:
    assert not sockets.lost(3), "nobody was announced yet"
    there = {index: Peer(index, f"w{index}", f"ipc://w{index}", "here") for index in (0, 4)}
    sockets.meet(there, lambda *mail: None)
    assert sockets.lost(3) and not sockets.lost(5)
    sockets.meet({0: there[0]}, lambda *mail: None)
    assert sockets.lost(4), "it was announced, and has left"
