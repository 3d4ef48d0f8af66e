"""Loads, whose bytes come from their client: sent to each worker (an upload), or in memory that client and worker share.

A worker is sent a load when it can carry it out at once: when the bytes have come, or when the client has connected, without
which there is no shared memory. Until then the client's stream waits here, and no other's. A worker that waited for a client
would do so with a place in the order of collectives, and have everybody's wait behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.dispatcher.flow import Flow
from gt.dispatcher.tables import Client, Entry, Lost, Tables, WorkerState
from gt.errors import ProtocolError
from gt.ops.table import spec_out
from gt.program.code import free
from gt.transport.messages import Mail, Note, Run, Upload

PATIENCE = 30.0  # seconds after which a client is told that a worker has not heard from it


def uploaded(ins: tuple) -> bool:
    """Whether the client sends the bytes of a load to the workers when it is asked to."""
    return bool(ins[-3] == -1)


def read(ins: tuple) -> tuple:
    """A load as workers are to carry it out: they find uploaded bytes under the tensor's id."""
    if type(ins[1]) is not int:
        raise ProtocolError(f"invalid tensor id {ins[1]!r}: expected an integer")
    return (*ins[:-3], -1, ins[1], 0) if uploaded(ins) else ins


def begin(client: Client, ins: tuple, entry: Entry, queues: dict[int, list[Any]], flow: Flow) -> bool:
    """Send a load, whose instructions these are, to the workers that can carry it out. Whether the client's stream has to wait
    for the others."""
    layout, spec = entry.layout, entry.spec
    if uploaded(ins):
        boxes = tuple(layout.boxes(spec.shape))
        flow.mail.append(Mail(client.name, Upload(client.name, ins[1], spec_out(spec), layout.workers, boxes)))
    else:
        for worker in queues.keys() & client.attached:
            flow.queue(worker).extend(queues.pop(worker))
    if queues:
        client.loading, client.uploads, client.arriving = ins[1], uploaded(ins), queues
    return bool(queues)


def arrived(worker: WorkerState, client: Client, id: int) -> Iterable[Mail]:
    """A worker has its piece of an upload."""
    if client.loading == id and client.uploads:
        yield from _go(worker, client)
    elif code := client.late.pop((worker.index, id), None):
        yield Mail(worker.peer, Run(client.name, 0, (), code))


def attached(worker: WorkerState, client: Client) -> Iterable[Mail]:
    """A client has connected to a worker."""
    client.attached.add(worker.index)
    client.unheard.pop(worker.index, None)
    if client.loading is not None and not client.uploads:
        yield from _go(worker, client)


def _go(worker: WorkerState, client: Client) -> Iterable[Mail]:
    """Send a worker the load that waited for it. The last one ends the wait."""
    code = client.arriving.pop(worker.index, None)
    if code is not None:
        yield Mail(worker.peer, Run(client.name, 0, (), code))
    if not client.arriving:
        client.loading = None


def lost(client: Client, index: int) -> bool:
    """A worker is gone: whether that ends the wait of a load. Workers that still get their piece of an upload free it."""
    client.attached.discard(index)
    client.unheard.pop(index, None)
    id = client.loading
    if id is None or not isinstance(client.entries.get(id), Lost):
        return False
    if client.uploads:
        client.late.update({(other, id): [*code, free(id)] for other, code in client.arriving.items() if other != index})
    client.loading, client.arriving = None, {}
    return True


def tick(tables: Tables, now: float) -> Iterable[Mail]:
    """Time has passed: tell clients of the workers that have work of theirs and have long not heard from them."""
    for client in tables.clients.values():
        for index in (client.sent.keys() | client.arriving.keys()) - client.attached:
            if now - client.unheard.setdefault(index, now) > PATIENCE:
                client.unheard[index] = float("inf")
                worker = tables.workers[index]
                where = f"{worker.name} ({worker.remote or worker.address})"
                text = f"has not heard from this script for {PATIENCE:g} s: it is busy, or cannot be reached from {client.host}"
                yield Mail(client.name, Note(f"worker {where} {text}"))
