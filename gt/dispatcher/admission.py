"""Admission of clients: version check, limits on their number, and their share and memory within their user's limits."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from gt import __version__
from gt.dispatcher import policy
from gt.dispatcher.reports import Reports
from gt.dispatcher.tables import Client, Tables
from gt.dispatcher.users import User, Users
from gt.errors import ProtocolError
from gt.transport.messages import PRIORITIES, VERSION, Bye, Hello, Mail, Welcome

RESERVED = 8  # client places reserved for a pool's administrators
SCARCE = 0.75  # share of the client places from which on a user of a pool may have no more than an even share


def check_version(version: int, release: str = "") -> None:
    """Raise for a peer with another protocol version, or of a release whose results may differ. Releases that differ in the
    last number are compatible, so that a pool can be upgraded worker by worker."""
    if version != VERSION:
        raise ProtocolError(f"protocol version {version} is not the dispatcher's, {VERSION}: install the same version of GT")
    if release and release.split(".")[:2] != __version__.split(".")[:2]:
        raise ProtocolError(f"GT {release} does not fit GT {__version__} of this dispatcher: expected {_family()}.x")


def _family() -> str:
    return ".".join(__version__.split(".")[:2])


class Admission:
    def __init__(self, tables: Tables, users: Users, reports: Reports) -> None:
        self.tables, self.users, self.reports = tables, users, reports
        self.numbers = count(1)  # the clients' numbers, as `gt ps` shows them

    def hello(self, peer: str, hello: Hello, role: str) -> Iterable[Mail]:
        client = Client(peer, f"{hello.host}:{hello.pid}", hello.host)
        try:
            check_version(hello.version)
            user = self.users.of(role)
            self._room(user)
            self._limit(client, hello, user)
        except ProtocolError as refused:
            self.tables.dropped += 1
            self.reports.tell(f"a client was refused: {refused}")
            yield Mail(peer, Bye(f"refused: {refused}"))
            return
        client.number = next(self.numbers)
        if any(c.label == client.label for c in self.tables.clients.values()):
            client.label += f"#{client.number}"  # clients choose their labels: no two may share one
        self.tables.clients[peer] = client
        client.home = policy.home(self.tables, client)
        self.reports.tell(f"client {client.label} joined" + (f", of {client.user.name}" if client.user.name else ""))
        if (introduction := client.introduction()) is not None:
            for worker in self.tables.usable(client):
                yield Mail(worker.peer, introduction)
        yield Mail(peer, Welcome(peer, client.number, self.tables.peers_of(client)))

    def _room(self, user: User) -> None:
        """Raise if there is no place for another client of this user. No user may take all places, and some are reserved for
        administrators."""
        there, most = len(self.tables.clients), self.tables.most_clients
        if there >= most + (RESERVED if user.name and user.administrator else 0):
            raise ProtocolError(
                f"this dispatcher is full: it serves {there} clients, the most that it takes "
                f"({self.tables.most_because}); come again later, or use another pool"
            )
        if user.name and not user.administrator and there >= most * SCARCE:
            own, share = self._clients_of(user), max(1, most // len(self.users.named))
            if own >= share:
                raise ProtocolError(
                    f"{user.name} has {own} clients: while {there} of this dispatcher's {most} places are taken "
                    f"({self.tables.most_because}), the others are for users with fewer than {share}"
                )

    def _clients_of(self, user: User) -> int:
        return sum(c.user.name == user.name for c in self.tables.clients.values())

    def _limit(self, client: Client, hello: Hello, user: User) -> None:
        """Set a client's weight, memory and workers: its request, capped by its user's limits."""
        there = self._clients_of(user)
        if user.clients and there >= user.clients:
            raise ProtocolError(f"user {user.name} has {there} clients already, its maximum")
        client.user, client.weight = user, hello.weight * PRIORITIES[hello.priority]
        client.interactive = hello.priority == "interactive"
        client.memory = min([bytes for bytes in (hello.memory, user.memory) if bytes], default=0)
