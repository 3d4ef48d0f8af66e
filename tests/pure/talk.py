"""Talking to a dispatcher in a test."""

from __future__ import annotations

from gt.dispatcher.core import Dispatcher
from gt.transport.messages import VERSION, Hello, Join, Mail, Message


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
        return self(name, Join(VERSION, "", label or name, "numpy", "cpu", "here", 8, f"ipc://{name}"))
