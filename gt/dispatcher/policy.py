"""Where a new tensor goes when no signal says so, and how much lies on each worker."""

from __future__ import annotations

from collections import Counter

from gt.dispatcher.plan import Target
from gt.dispatcher.tables import Client, Entry, Tables
from gt.spec import REPLICATE, Layout, Mesh, Shard, Spec

SLACK = 1 << 20  # bytes by which a client's home may lead before its tensors go elsewhere: moving them back costs more
LARGE = 1 << 20  # bytes from which a tensor is worth cutting


def home(tables: Tables, client: Client) -> int | None:
    """The worker for a client's tensors, once those that are to come have come: the one that fewest others call home, the
    earliest of those."""
    living = tables.staying(client)
    if not living or len(tables.workers) < tables.expected:
        return None
    homes = Counter(c.home for c in tables.clients.values() if c is not client)
    return min(living, key=lambda w: (homes[w.index], w.index)).index


def new_layout(tables: Tables, client: Client) -> Layout:
    """Where a client's next tensor goes: to its home, or, where that holds much more than another, to the least loaded."""
    assert client.home is not None
    workers = tables.workers
    if workers[client.home].bytes < SLACK:  # it cannot lead by more than it holds
        return Layout.on(client.home)
    may = workers if client.user.workers is None else tables.usable(client)
    least = min((w for w in may if w.alive and not w.draining), key=lambda w: w.bytes)
    ahead = workers[client.home].bytes - least.bytes
    return Layout.on(least.index if ahead >= SLACK else client.home)


def auto(spec: Spec, living: list[int]) -> Target:
    """Cut along the first axis over all workers, where that pays; else a copy on each."""
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
