"""Where a new tensor goes when no signal says so."""

from __future__ import annotations

from gt.dispatcher.tables import Client, Tables


def home(tables: Tables, client: Client) -> int | None:
    """The worker for a client's tensors, once those that are to come have come: the one that fewest others call home, the earliest of those."""
    living = tables.living()
    if not living or len(tables.workers) < tables.expected:
        return None
    homes = [c.home for c in tables.clients.values() if c is not client]
    return min(living, key=lambda w: (homes.count(w.index), w.index)).index
