"""Names of those that a worker exchanges mail with: the dispatcher, other workers by their index, clients by their names."""

from __future__ import annotations

DISPATCHER = ""


def worker_peer(index: int) -> str:
    """The name under which mail goes to a worker."""
    return f"#{index}"
