"""Users and their limits. In a pool each user has a key and limits of its own; otherwise all clients belong to one user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gt.errors import ProtocolError
from gt.transport.auth import user_name


@dataclass(frozen=True)
class User:
    """The limits of one user, for all its clients together: a `weight` of its share of busy workers, bytes of `memory` on each
    worker (0: no limit), the `workers` it may use, by name or index (None: all), and a number of `clients` (0: no limit). An
    administrator sees every client and may end it."""

    name: str = ""
    weight: float = 1.0
    memory: int = 0
    workers: tuple[int | str, ...] | None = None
    clients: int = 0
    administrator: bool = False

    def may_use(self, index: int, name: str) -> bool:
        return self.workers is None or index in self.workers or name in self.workers

    def sees(self, other: User) -> bool:
        """Whether it may see another user's clients."""
        return self.administrator or self.name == other.name


OWNER = User(administrator=True)  # without keys the OS admits only the server's own user
MEMBER = User()  # of a server whose users share one key


@dataclass(frozen=True)
class Users:
    """The users of a pool by name, and their names by public key. Empty if users have no keys of their own."""

    named: Mapping[str, User] = field(default_factory=dict)
    public: Mapping[str, str] = field(default_factory=dict)

    def of(self, role: str) -> User:
        """The user that a connection's key authenticates."""
        if not self.named:
            return MEMBER if role else OWNER
        name = user_name(role)
        if name not in self.named:
            raise ProtocolError("unknown user key: expected one that the users' file names")
        return self.named[name]
