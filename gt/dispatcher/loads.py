"""Loads of a client's bytes: sent to each worker (an upload), or in memory that client and worker share.

A worker gets a load when it can execute it at once: when the bytes have arrived, or when the client has attached, without
which there is no shared memory. Until then the client's stream, and no other's, waits at the dispatcher. A worker that waited
for a client would hold its place in the order of collectives, and all clients' collectives would wait behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.dispatcher.flow import Flow
from gt.dispatcher.tables import Client, Entry, Lost, WorkerState, check_results
from gt.ops.table import spec_out
from gt.program.code import first_result, free, place_of, with_place
from gt.transport.messages import Mail, Run, Upload

UPLOADED = -1  # instead of a segment: the bytes are uploaded


def uploaded(ins: tuple) -> bool:
    """Whether the bytes of a load are uploaded, at the dispatcher's request."""
    return bool(place_of(ins)[0] == UPLOADED)


def read(client: Client, ins: tuple) -> tuple:
    """A load instruction for workers, which find uploaded bytes under the tensor's id."""
    id = first_result(ins)
    check_results(client, (id,), whole=True)
    return with_place(ins, (UPLOADED, id, 0)) if uploaded(ins) else ins


def begin(client: Client, ins: tuple, entry: Entry, queues: dict[int, list[Any]], flow: Flow) -> bool:
    """Send the instructions of a load to the workers that can execute it now. Returns whether the client's stream has to wait
    for the others."""
    layout, spec = entry.layout, entry.spec
    if uploaded(ins):
        boxes = tuple(layout.boxes(spec.shape))
        flow.mail.append(Mail(client.name, Upload(client.name, first_result(ins), spec_out(spec), layout.workers, boxes)))
    else:
        for worker in queues.keys() & client.attached:
            flow.queue(worker).extend(queues.pop(worker))
    if queues:
        client.loading, client.uploads, client.arriving = first_result(ins), uploaded(ins), queues
    return bool(queues)


def arrived(worker: WorkerState, client: Client, id: int) -> Iterable[Mail]:
    """A worker has its piece of an upload."""
    if client.loading == id and client.uploads:
        yield from _send_load(worker, client)
    elif code := client.late.pop((worker.index, id), None):
        yield Mail(worker.peer, Run(client.name, 0, (), code))


def attached(worker: WorkerState, client: Client) -> Iterable[Mail]:
    """A client has attached to a worker."""
    client.attached.add(worker.index)
    client.unheard.pop(worker.index, None)
    if client.loading is not None and not client.uploads:
        yield from _send_load(worker, client)


def _send_load(worker: WorkerState, client: Client) -> Iterable[Mail]:
    """Send a worker its load instructions. Those for the last worker end the wait."""
    code = client.arriving.pop(worker.index, None)
    if code is not None:
        yield Mail(worker.peer, Run(client.name, 0, (), code))
    if not client.arriving:
        client.loading = None


def lost(client: Client, index: int) -> bool:
    """A worker is lost. Returns whether that ends the wait of a load. Other workers free their pieces of an abandoned
    upload."""
    client.attached.discard(index)
    client.unheard.pop(index, None)
    if client.late:
        client.late = {at: code for at, code in client.late.items() if at[0] != index}
    id = client.loading
    if id is None or not isinstance(client.entries.get(id), Lost):
        return False
    if client.uploads:
        client.late.update({(other, id): [*code, free(id)] for other, code in client.arriving.items() if other != index})
    client.loading, client.arriving = None, {}
    return True
