"""The first message to a dispatcher and its answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from gt.errors import ConnectionFailed
from gt.transport.sockets import greet

MONITOR = "a socket's monitor"


class GreetedSocket:
    """A socket to a dispatcher that answers with `answers`."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def poll(self, timeout: int, flags: int = zmq.POLLIN) -> bool:
        return flags == zmq.POLLOUT or bool(self.answers)

    def send(self, data: bytes, flags: int) -> None: ...

    def recv(self) -> bytes:
        return self.answers.pop()


class PollerOfEnds:
    """Finds the end of the connection only, as a poll that looked for an answer a moment too early."""

    def register(self, socket: Any, flags: int) -> None: ...

    def poll(self, timeout: int) -> list[tuple[Any, int]]:
        return [(MONITOR, zmq.POLLIN)]


def test_an_answer_before_the_end_of_the_connection_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.transport.sockets.zmq.Poller", PollerOfEnds)
    ends: Any = SimpleNamespace(socket=MONITOR, refused=lambda: True)
    ask: Any = GreetedSocket(b"refused: a user's key")
    assert greet(ask, ends, "there", b"hello", 1.0) == b"refused: a user's key"
    with pytest.raises(ConnectionFailed, match="broke off"):
        greet(ask, ends, "there", b"hello", 1.0)
