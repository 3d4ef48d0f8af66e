"""The members of a group: whose memory one of them can read, and the number by which they name their group."""

from __future__ import annotations

import contextlib
from hashlib import blake2b
from typing import Any

from gt.transport.process_memory import Inbox, PeerProcess


def reached(rank: int, offers: list[str], inbox: Inbox | None, processes: dict[int, int]) -> dict[int, PeerProcess]:
    """The other members whose memory this one can read; that is tried. `processes` are those that listen where the members say
    that they do: a worker offers its own memory, and no other process's."""
    found: dict[int, PeerProcess] = {}
    for r, pid in processes.items() if inbox is not None else ():
        if offers[r] and offers[r].split()[0] == str(pid):
            with contextlib.suppress(OSError):  # it is on another host, or it is not allowed here
                found[r] = inbox.reach(offers[r])  # type: ignore[union-attr]
    return found


def name_of(*group: Any) -> int:
    """A number by which the members of a group name it, and nobody another one."""
    return int.from_bytes(blake2b(repr(group).encode(), digest_size=8).digest(), "little")
