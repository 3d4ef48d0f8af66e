"""Names of a worker's correspondents: the dispatcher, other workers by index, clients by name."""

from __future__ import annotations

DISPATCHER = ""


def worker_peer(index: int) -> str:
    """The name of a worker as a receiver of mail."""
    return f"#{index}"
