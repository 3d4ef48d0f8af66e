"""Reports to clients about long waits: of a read for a worker to join, of a worker for the client to connect."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from gt.dispatcher.held import HeldMessages
from gt.dispatcher.tables import Client, Tables
from gt.transport.messages import Batch, Failed, Mail, Note

HEARD = 30.0  # seconds after which a client is told that a worker has not heard from it


def tick(tables: Tables, now: float) -> list[Mail]:
    """The messages that follow from the time. Only clients that wait for something are looked at, so idle ones cost nothing."""
    told: list[Mail] = []
    for name in list(tables.waiting):
        client = tables.clients[name]
        told += (*_unheard(tables, client, now), *_unserved(tables, client, now))
        if not client.held and all(since > now for since in client.unheard.values()):
            del tables.waiting[name]
    return told


def _unheard(tables: Tables, client: Client, now: float) -> Iterable[Mail]:
    """Tell a client of the workers that have work of its and have long not heard from it."""
    for index in (client.sent.keys() | client.arriving.keys()) - client.attached:
        if now - client.unheard.setdefault(index, now) > HEARD:
            client.unheard[index] = float("inf")
            worker = tables.workers[index]
            where = f"{worker.name} ({worker.remote or worker.address})"
            text = f"has not heard from this script for {HEARD:g} s: it is busy, or cannot be reached from {client.host}"
            yield Mail(client.name, Note(f"worker {where} {text}"))


def _unserved(tables: Tables, client: Client, now: float) -> Iterable[Mail]:
    """Answer reads that have long waited for a worker to join; their tensors may still be computed."""
    reads = [m for m in client.held if isinstance(m, Batch) and m.gets] if client.home is None else []
    if not reads:
        client.since = None
        return
    client.since = now if client.since is None else client.since
    if now - client.since > tables.joins_within:
        why = f"no worker has joined this dispatcher for {tables.joins_within:g} s: start one with `gt-worker`"
        yield from [Mail(client.name, Failed(ticket, "GTError", why, id)) for m in reads for ticket, id, _ in m.gets]
        client.held = HeldMessages(replace(m, gets=()) if isinstance(m, Batch) else m for m in client.held)
