"""The placement of new tensors without a signal, and the bytes on each worker."""

from __future__ import annotations

from collections import Counter

from gt.dispatcher.plan import Target
from gt.dispatcher.tables import Client, Entry, Tables
from gt.spec import REPLICATE, Layout, Mesh, Shard, Spec

SLACK = 1 << 20  # bytes that a client's home may have more than the least loaded worker before new tensors are placed elsewhere
LARGE = 1 << 20  # bytes from which a tensor is sharded


def home(tables: Tables, client: Client) -> int | None:
    """The worker for a client's tensors: the earliest with the fewest clients at home. None until all expected
    workers have joined."""
    living = tables.staying(client)
    if not living or tables.joined < tables.expected:
        return None
    homes = Counter(c.home for c in tables.clients.values() if c is not client)
    return min(living, key=lambda w: (homes[w.index], w.index)).index


def new_layout(tables: Tables, client: Client) -> Layout:
    """The layout of a client's next tensor: on its home, or, if that has much more than another, on the least loaded worker."""
    assert client.home is not None
    workers = tables.workers
    if workers[client.home].bytes < SLACK:  # its lead is at most its bytes
        return Layout.on(client.home)
    may = workers.values() if client.user.workers is None else tables.usable(client)
    least = min((w for w in may if not w.draining), key=lambda w: w.bytes)
    ahead = workers[client.home].bytes - least.bytes
    return Layout.on(least.index if ahead >= SLACK else client.home)


def auto(spec: Spec, living: list[int]) -> Target:
    """Sharded along the first axis over all workers if large enough, else replicated."""
    pays = spec.nbytes >= LARGE and spec.shape[0] >= len(living)
    return Target(Mesh((len(living),), tuple(living)), (Shard(0) if pays else REPLICATE,))


def count(tables: Tables, client: Client, id: int, entry: Entry) -> None:
    client.sizes[id] = entry.nbytes
    for w in entry.workers:
        tables.workers[w].bytes += entry.nbytes


def uncount(tables: Tables, client: Client, id: int, entry: Entry) -> None:
    each = client.sizes.pop(id, 0)
    if each:
        for w in entry.workers:
            tables.workers[w].bytes -= each


def uncount_all(tables: Tables, client: Client) -> None:
    """The same for all tensors of a client, of which many are alike."""
    alike = Counter(zip(map(client.entries.get, client.sizes), client.sizes.values()))
    for (entry, each), number in alike.items():
        for w in entry.workers if isinstance(entry, Entry) else ():
            tables.workers[w].bytes -= number * each
    client.sizes.clear()
