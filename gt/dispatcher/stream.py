"""The stream of each client, from client to workers: its batches, its reads and its uploads."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from gt.dispatcher import policy, sharding
from gt.dispatcher.definitions import PendingDefinitions
from gt.dispatcher.flow import Flow
from gt.dispatcher.held import weight
from gt.dispatcher.observers import Observers
from gt.dispatcher.planning import SOLO
from gt.dispatcher.reports import Reports
from gt.dispatcher.rewrite import Rewriter
from gt.dispatcher.sharded_programs import ShardedProgram
from gt.dispatcher.tables import Client, Entry, Lost, Refused, Tables, TracePlans, WorkerState, results_of
from gt.program.code import FREES, frees, is_client_kind, is_free
from gt.transport import checks
from gt.transport.checks import TooMuch
from gt.transport.messages import (
    Ack,
    Batch,
    Done,
    Failed,
    Fetch,
    Mail,
    Run,
    size_of,
)  # fmt: skip

LONGEST = 1 << 13  # instructions of a message that are written at once


class Stream:
    """Handles batches. `Dispatcher` handles membership and questions, and decides when held messages continue."""

    def __init__(self, tables: Tables, rewriter: Rewriter, reports: Reports, observers: Observers) -> None:
        self.tables, self.rewriter, self.reports, self.observers = tables, rewriter, reports, observers

    def batch(self, client: Client, batch: Batch) -> Iterable[Mail]:
        if len(client.entries) > checks.TENSORS or client.known > checks.KNOWN:
            counts = f"{len(client.entries)} tensors and {client.known} kinds"
            raise TooMuch(f"a client of {counts}: the most are {checks.TENSORS} and {checks.KNOWN}")
        if batch.deferred is not None and not self._can_defer(client, batch):
            return self._not_deferred(client, batch)
        if not client.held and client.loading is None and not client.ahead:
            return self.run(client, batch)
        flow = Flow()
        self.hold(client, self._lost_reads(client, batch, batch.code, flow))
        return flow.mail

    def _can_defer(self, client: Client, batch: Batch) -> bool:
        """Whether a deferred batch is one run, for a worker that is attached and stays, which the client can start."""
        waits = client.held or client.loading is not None or client.ahead or client.cut or client.unfinished is not None
        defines = batch.kinds or batch.traces or batch.forget or batch.drops
        if waits or defines or self.tables.many or client.home not in client.attached:
            return False
        return not self.tables.workers[client.home].draining and self.rewriter.left > 0

    def _not_deferred(self, client: Client, batch: Batch) -> Iterable[Mail]:
        """Refuse a deferred batch, whose client then sends it again as another one; its frees are executed."""
        yield from self.batch(client, Batch(batch.serial, (), frees(batch.code), (), batch.ack))
        question = [ins for ins in batch.code if not is_free(ins)]
        yield from self.refuse(client, Batch(batch.serial, (), question, batch.gets), "the batch cannot be deferred now")

    def hold(self, client: Client, message: Any) -> list[Mail]:
        """Hold a message until a worker joins, an upload arrives or the workers catch up. Nothing is sent yet."""
        held = client.held.size + weight(message)
        if held > checks.HELD:
            raise TooMuch(f"{held} instructions wait for a worker or an upload: the most are {checks.HELD}")
        client.held.append(message)
        self.tables.waiting[client.name] = None
        return []

    def _hold_rest(self, client: Client, rest: Batch) -> None:
        client.held.appendleft(rest)
        self.tables.waiting[client.name] = None

    def run(self, client: Client, batch: Batch) -> list[Mail]:
        flow, code, later = Flow(), batch.code, []
        stop: int | None = 0
        if len(code) > LONGEST:
            code, later = code[:LONGEST], code[LONGEST:]
        if self._ready(client, batch, flow):
            whole = batch.deferred is not None
            stop = self.rewriter.rewrite(client, code, flow, whole)  # (it may write instructions of traces into `code`)
            self.rewriter.left -= len(code) // SOLO
            if stop is None and later:
                stop = len(code)
                self.tables.cut_short(client)
        if stop is not None:
            if client.home is None:
                batch = self._lost_reads(client, batch, code[stop:] + later, flow)
            rest = Batch(batch.serial, (), code[stop:] + later, batch.gets, batch.ack, batch.forget, (), batch.drops)
            self._hold_rest(client, rest)
            batch = Batch(batch.serial, (), code[:stop])
        client.instructions += len(batch.code)
        if batch.gets:
            batch = self._reads(client, batch, flow)
        if self.observers.on and (not self.observers.every or self.observers.local is not None):
            self.observers.batch(client, batch)  # only the handled part: the rest is held and handled later
        ack = batch.ack
        if ack:
            used = set(client.told) | set(flow.code)
            if used:
                client.acks[batch.serial] = used
            else:
                flow.mail.append(Mail(client.name, Ack(batch.serial)))
        forget = (
            batch.forget if batch.forget > client.forget else 0
        )  # a bound lower than the last would make workers' tables differ
        if forget:
            self._forget(client, forget)
        drops = self._drop(client, batch.drops) if batch.drops else ()
        if flow.refused:
            self.reports.dropped(client.name, flow.refused[0], len(flow.refused))
        return self._runs(client, batch, ack, forget, drops, flow) + flow.mail

    def _lost_reads(self, client: Client, batch: Batch, code: list[tuple], flow: Flow) -> Batch:
        """Answer the reads of lost tensors in a batch though its instructions, or the rest, `code`, are held; where they
        wait for a worker, also reads of values made of lost tensors, which no worker can compute. Returns the batch without
        these reads."""
        entries, lost = client.entries, client.held.lost
        for ins in code if client.home is None else ():
            use = client.uses.get(ins[0]) if ins else None
            if use is None or not use.result_count or len(ins) != use.length:
                continue
            operands = [lost.get(ins[i], entries.get(ins[i])) for i in use.tensor_positions]
            cause = next((operand for operand in operands if isinstance(operand, Lost)), None)
            lost.update(dict.fromkeys(results_of(client, ins), cause))
        left = []
        for get in batch.gets:
            cause = lost.get(get[1], entries.get(get[1]))
            if isinstance(cause, Lost):
                flow.mail.append(Mail(client.name, Failed(get[0], cause.error, cause.why, get[1])))
            else:
                left.append(get)
        return msgspec.structs.replace(batch, gets=tuple(left))

    def _reads(self, client: Client, batch: Batch, flow: Flow) -> Batch:
        """Write the reads that one slice has room for; the rest is held, with all that comes after the reads. Returns the
        part of the batch that is done."""
        rewriter = self.rewriter
        for position, (ticket, id, spec) in enumerate(batch.gets):
            if rewriter.left <= 0 and position and batch.deferred is None:
                rest = Batch(batch.serial, (), [], batch.gets[position:], batch.ack, batch.forget, (), batch.drops)
                self._hold_rest(client, rest)
                self.tables.cut_short(client)
                return Batch(batch.serial, (), batch.code, batch.gets[:position])
            rewriter.left -= self._get(client, ticket, id, spec, flow)
        return batch

    def _runs(self, client: Client, batch: Batch, ack: bool, forget: int, drops: tuple[int, ...], flow: Flow) -> list[Mail]:
        """The Run for each worker of a batch."""
        workers, code, kinds, gets, traces = self.tables.workers, flow.code, flow.kinds, flow.gets, flow.traces
        busy: Collection[int] = code
        if kinds or traces or ack or gets and gets.keys() != code.keys():
            busy = {*code, *gets, *kinds, *traces, *(client.acks.get(batch.serial, ()) if ack else ())}
        mails: list[Mail] = []
        for w in sorted(busy) if len(busy) > 1 else busy:
            run = Run(
                client.name, batch.serial, tuple(kinds.get(w, ())), code.get(w, []), tuple(gets.get(w, ())), ack, forget,
                tuple(traces.get(w, ())), drops, batch.deferred,
            )  # fmt: skip
            mails.append(Mail(workers[w].peer, run))
            before = client.sent.get(w, 0)
            client.sent[w] = sent = before + size_of(run)
            if not before:
                self.tables.waiting[client.name] = None  # for the worker to hear from it
            if sent - client.executed.get(w, 0) > checks.AHEAD:
                client.ahead = True
        if self.observers.sends:
            self.observers.runs(client, batch, mails)
        return mails

    def progress(self, client: Client, worker: int, done: int) -> bool:
        """A worker has executed this much of a client's work. Returns whether the client's held messages may continue."""
        client.executed[worker] = done
        return self._caught_up(client)

    def lost(self, client: Client, worker: int) -> bool:
        """Drop a lost worker's part in a client's flow control. Returns whether it had held the client back."""
        client.sent.pop(worker, None)
        client.executed.pop(worker, None)
        return self._caught_up(client)

    def _caught_up(self, client: Client) -> bool:
        before = client.ahead
        client.ahead = before and any(n - client.executed.get(w, 0) > checks.AHEAD for w, n in client.sent.items())
        return before and not client.ahead

    def _ready(self, client: Client, batch: Batch, flow: Flow) -> bool:
        """Begin or continue the definitions of a batch. Returns whether all are done within this slice."""
        begun, client.unfinished = client.unfinished, None
        if batch.kinds or batch.traces:
            begun = PendingDefinitions(client, batch)
        if begun is None or begun.advance(self.rewriter, client, flow):
            return True
        client.unfinished = begun
        self.tables.cut_short(client)
        return False

    def _drop(self, client: Client, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Forget traces and their sharded programs, and return the numbers of both. Kinds stay, as other traces use them."""
        named = client.uses.keys() & set(numbers)
        gone = {n for n in named if is_client_kind(n) and isinstance(client.uses[n], (TracePlans, Refused))}
        for number in gone:
            dropped = client.uses.pop(number)
            client.known -= dropped.size
            client.traced -= dropped.instructions if isinstance(dropped, TracePlans) else 0
        sharded = {p.number for k, p in client.plans.items() if k[0] in gone and isinstance(p, ShardedProgram)}
        client.locals = {k: n for k, n in client.locals.items() if n not in sharded}
        for told in client.told.values():
            told -= gone | sharded
        client.plans = {k: p for k, p in client.plans.items() if k[0] not in gone}
        return (*gone, *sharded)

    def refuse(self, client: Client, batch: Batch, why: str) -> Iterable[Mail]:
        """Refuse a batch: its results carry the reason, its reads and its Ack are answered."""
        lost = Lost(why, "ProtocolError")
        for ins in batch.code:
            for id in results_of(client, ins):
                if not isinstance(client.entries.get(id), Entry):
                    client.entries[id] = lost
        for ticket, id, _ in batch.gets:
            yield Mail(client.name, Failed(ticket, "ProtocolError", why, id))
        if batch.ack:
            yield Mail(client.name, Ack(batch.serial))

    def _forget(self, client: Client, below: int) -> None:
        """Forget the kinds below the previous bound; another thread of the client may still use kinds below this one."""
        last, client.forget = client.forget, below
        client.uses = {n: u for n, u in client.uses.items() if n >= last or u is FREES}
        client.traced = sum(u.instructions for u in client.uses.values() if isinstance(u, TracePlans))
        client.known = sum(u.size for u in client.uses.values() if u is not FREES)
        client.plans = {k: p for k, p in client.plans.items() if k[0] >= last}
        client.plans = {k: p for k, p in client.plans.items() if p.solo is not None}
        client.locals.clear()  # workers that forget drop all kinds with negative numbers
        client.kinds.clear()
        client.told = {w: {n for n in numbers if n >= max(last, 1)} for w, numbers in client.told.items()}

    # Reading

    def _get(self, client: Client, ticket: int, id: int, wire: tuple, flow: Flow) -> int:
        """Write a read. Returns its cost, as `Rewriter.left` counts: its pieces."""
        entry = client.entries.get(id)
        if not isinstance(entry, Entry):
            why, error = (entry.why, entry.error) if entry else ("no such tensor", "ProtocolError")
            flow.mail.append(Mail(client.name, Failed(ticket, error, why, id)))
            return 0
        if (entry.spec.dtype.code, *entry.spec.shape) != wire:
            flow.mail.append(
                Mail(client.name, Failed(ticket, "ProtocolError", f"expected a read of {entry.spec}, got a read of {wire}", id))
            )
            return 0
        if entry.solo is not None:
            shape = entry.spec.shape
            flow.gets.setdefault(entry.solo, []).append(Fetch(ticket, id, wire, (0,) * len(shape), shape))
            return 0
        if entry.layout.partial:
            entry = sharding.reduced(client, id, entry, flow)
        sharding.fetch(ticket, id, entry.spec, entry.layout, flow)
        return len(entry.workers)

    def done(self, worker: WorkerState, done: Done) -> Iterable[Mail]:
        client, serial = self.tables.clients.get(done.client), done.serial
        if client is None:
            return
        for id in done.broken:
            if isinstance(entry := client.entries.get(id), Entry):
                policy.uncount(self.tables, client, id, entry)  # else others' tensors would make room for a missing one
        waiting = client.acks.get(serial)
        if waiting is None:
            return
        waiting.discard(worker.index)
        client.seconds = max(client.seconds, done.seconds)
        if not waiting:
            del client.acks[serial]
            yield Mail(client.name, Ack(serial, client.seconds))
