"""Pure tests: no thread, socket or sleep, and a dispatcher whose invariants are checked after every message."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq
from conversation import Conversation
from wire import Wire

from gt.client.scope import HERE, Scope
from gt.client.session import Session


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a thread, opens a socket or sleeps here is told so."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a pure test starts no thread, opens no socket and does not sleep")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(zmq.Context, "socket", refuse)
    monkeypatch.setattr(time, "sleep", refuse)


@pytest.fixture
def talk() -> Iterator[Conversation]:
    made = Conversation()
    yield made
    made.tables.check()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    made.session = Session(made, "c")
    before, HERE.scope = HERE.scope, Scope(made.session)
    yield made
    HERE.scope = before
    made.session.close()
