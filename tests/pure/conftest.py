"""Pure tests: no thread, socket or sleep, and a dispatcher whose invariants are checked after every message."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from gt.dispatcher.core import Dispatcher
from gt.transport.messages import VERSION, Hello, Join, Mail, Message


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a thread, opens a socket or sleeps here is told so."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a pure test starts no thread, opens no socket and does not sleep")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(zmq.Context, "socket", refuse)
    monkeypatch.setattr(time, "sleep", refuse)


class Talk:
    """A conversation with a dispatcher: who says what, and what follows."""

    def __init__(self, key: str = "") -> None:
        self.dispatcher = Dispatcher(key)
        self.tables = self.dispatcher.tables

    def __call__(self, peer: str, message: Message) -> list[Mail]:
        return self.told(self.dispatcher.handle(Mail(peer, message)))

    def gone(self, peer: str) -> list[Mail]:
        return self.told(self.dispatcher.lose(peer, "its connection ended"))

    def told(self, mails: list[Mail]) -> list[Mail]:
        self.tables.check()
        return mails

    def client(self, name: str = "c") -> list[Mail]:
        return self(name, Hello(VERSION, "", "here", 7))

    def worker(self, name: str = "w0", label: str = "") -> list[Mail]:
        return self(name, Join(VERSION, "", label or name, "numpy", "cpu", "here", 8, f"at-{name}"))


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk()
    yield made
    made.tables.check()
