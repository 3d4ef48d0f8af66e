"""Statistics of clients by number. A client's name is its secret between processes, and never shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gt.dispatcher.tables import Client, Tables
from gt.transport.messages import Batch

SUMMED = ("seconds", "entitled", "turns", "queue", "bytes", "moved")
WORST = ("wait_p50", "wait_p99")


def by_number(tables: Tables, viewer: Client, shares: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's statistics of its clients, by number, for the clients that the viewer may see."""
    return {str(c.number): shares[c.name] for c in tables.seen_by(viewer) if c.name in shares}


def listing(tables: Tables, viewer: Client, answers: Mapping[int, Any]) -> list[dict[str, Any]]:
    """A row for each client that the viewer may see: its identity, and its statistics summed over all workers."""
    found = []
    for client in tables.seen_by(viewer):
        parts = [a["shares"][client.name] for a in answers.values() if client.name in a.get("shares", {})]
        row: dict[str, Any] = {key: sum(p.get(key, 0) for p in parts) for key in SUMMED}
        row |= {key: max((p.get(key, 0.0) for p in parts), default=0.0) for key in WORST}
        total = sum(p.get("total", 0.0) for p in parts) or 1.0
        held = sum(1 + len(m.code) for m in client.held if isinstance(m, Batch))
        found.append({
            "number": client.number, "user": client.user.name, "process": client.label, "weight": client.weight,
            "memory": client.memory, "tensors": len(client.entries), "held": held,
            "wanted": row.pop("entitled") / total, "got": row["seconds"] / total, **row,
        })  # fmt: skip
    return found
