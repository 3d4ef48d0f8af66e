"""Talking to a dispatcher in a test."""

from __future__ import annotations

from gt.dispatcher.core import Dispatcher
from gt.program.code import FREE
from gt.transport.messages import VERSION, Attached, Hello, Join, Mail, Message, Run


class Conversation:
    """A conversation with a dispatcher: messages by sender, and the mail that each causes."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self.tables = self.dispatcher.tables
        self.known: dict[tuple[str, str], set[int]] = {}  # kinds, by worker and client

    def __call__(self, peer: str, message: Message) -> list[Mail]:
        return self.told(self.dispatcher.handle(Mail(peer, message)))

    def turns(self) -> list[Mail]:
        """Clients whose messages were cut have their turns."""
        mails: list[Mail] = []
        while self.tables.cut:
            mails += self.told(self.dispatcher.advance())
        return mails

    def gone(self, peer: str) -> list[Mail]:
        return self.told(self.dispatcher.lose(peer, "its connection ended"))

    def told(self, mails: list[Mail]) -> list[Mail]:
        """Whatever is said, workers know the kinds of all they are to run."""
        self.tables.check()
        for mail in mails:
            if isinstance(run := mail.message, Run):
                known = self.known.setdefault((mail.peer, run.client), {FREE})
                known |= {d.number for d in (*run.kinds, *run.traces)}
                assert {ins[0] for ins in run.code} <= known, f"{mail.peer} does not know all of {run.code}"
        return mails

    def client(self, name: str = "c", attach: bool = True) -> list[Mail]:
        """A client comes, and with `attach` connects to the workers."""
        mails = self(name, Hello(VERSION, "", "here", 7))
        return mails + self.attached() if attach else mails

    def worker(self, name: str = "w0", label: str = "", attach: bool = True) -> list[Mail]:
        """A worker comes, and with `attach` clients connect to it."""
        mails = self(name, Join(VERSION, "", label or name, "numpy", "cpu", "here", 8, f"ipc://{name}"))
        return mails + self.attached() if attach else mails

    def attached(self) -> list[Mail]:
        """Clients connect to the workers that they have not connected to."""
        pairs = [(c, w) for c in self.tables.clients.values() for w in self.tables.living() if w.index not in c.attached]
        return [mail for c, w in pairs for mail in self(w.peer, Attached(w.index, True, c.name))]
