"""The members of a group: which of them can read one another's memory, and the group's number."""

from __future__ import annotations

import contextlib
from hashlib import blake2b
from typing import Any

from gt.transport.process_memory import Inbox, PeerProcess


def reached(rank: int, offers: list[str], inbox: Inbox | None, processes: dict[int, int]) -> dict[int, PeerProcess]:
    """The other members whose memory this one can read, by trying. `processes` are the pids of the processes that listen at the
    members' addresses: a worker may offer only its own memory."""
    found: dict[int, PeerProcess] = {}
    for r, pid in processes.items() if inbox is not None else ():
        if offers[r] and offers[r].split()[0] == str(pid):
            with contextlib.suppress(OSError):  # on another host, or not permitted
                found[r] = inbox.reach(offers[r])  # type: ignore[union-attr]
    return found


def name_of(*group: Any) -> int:
    """A number that identifies a group among its members."""
    return int.from_bytes(blake2b(repr(group).encode(), digest_size=8).digest(), "little")
