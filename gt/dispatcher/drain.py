"""Draining workers: no tensor is placed on them any more, their tensors move to other workers, and then they may leave."""

from __future__ import annotations

from collections.abc import Iterable

from gt.dispatcher import policy, sharding
from gt.dispatcher.flow import Flow
from gt.dispatcher.hosts import ONE, Hosts
from gt.dispatcher.redistribute import Redistribution
from gt.dispatcher.reports import Reports
from gt.dispatcher.steps import Draft, Plan
from gt.dispatcher.tables import Client, Entry, Tables, WorkerState
from gt.program.code import free
from gt.spec import REPLICATE, Layout, Mesh, Partial, Placement, Shard, Spec
from gt.transport.messages import Bye, Mail, Run


class Drains:
    """The draining workers. `moved` counts the tensors that were moved off them."""

    def __init__(self, tables: Tables, reports: Reports) -> None:
        self.tables, self.reports = tables, reports

    def begin(self, worker: WorkerState) -> Iterable[Mail]:
        """A worker asks to leave. The caller drops the plans that use it."""
        if not worker.draining:
            worker.draining = True
            self.tables.drained += 1
            self.reports.tell(f"worker {worker.name} (index {worker.index}) is about to leave")
            yield from self.advance()

    def advance(self) -> Iterable[Mail]:
        """Move the tensors that can be moved, and release the workers that await no upload."""
        for worker in self.tables.living():
            if worker.draining and not worker.released:
                yield from self._drain(worker)

    def _drain(self, worker: WorkerState) -> Iterable[Mail]:
        waits = moved = left = 0
        for client in self.tables.clients.values():
            staying = self.tables.staying(client)
            held = [id for id, e in client.entries.items() if isinstance(e, Entry) and worker.index in e.workers]
            if not staying:
                left += len(held)
            elif client.loading in held:  # its bytes are on their way to this worker or another
                waits += 1
            elif held:
                moved += len(held)
                yield from self._move(client, worker.index, held, staying)
        self.tables.moved += moved
        if moved:
            self.reports.tell(f"{moved} tensors moved from worker {worker.name} to others")
        if not waits:
            worker.released = True
            yield Mail(worker.peer, Bye(f"no other worker could take its {left} tensors" if left else ""))

    def _move(self, client: Client, gone: int, held: list[int], staying: list[WorkerState]) -> Iterable[Mail]:
        flow = Flow()
        for id in held:
            entry = client.entries[id]
            assert isinstance(entry, Entry)
            to = elsewhere(entry.layout, gone, staying, self.tables.hosts)
            plan = moving(entry.spec, entry.layout, to, self.tables.hosts)
            bound = sharding.bind(client, sharding.as_read(entry.spec), plan, flow)
            bound.write((0, id), flow.code)
            policy.uncount(self.tables, client, id, entry)
            client.entries[id] = bound.entries[0]
            policy.count(self.tables, client, id, bound.entries[0])
        for worker, code in sorted(flow.code.items()):
            kinds = tuple(flow.kinds.get(worker, ()))
            yield Mail(self.tables.workers[worker].peer, Run(client.name, 0, kinds, code))


def elsewhere(layout: Layout, gone: int, staying: list[WorkerState], hosts: Hosts = ONE) -> Layout:
    """A tensor's layout without one worker: a worker without a piece of it takes over, else the remaining workers share it."""
    spare = [w for w in staying if w.index not in layout.workers]
    rest = tuple(w.index for w in staying if w.index in layout.workers)
    whole = all(p == REPLICATE for p in layout.placements)
    placements = tuple(REPLICATE if isinstance(p, Partial) else p for p in layout.placements)
    if spare and not (whole and rest):
        taker = min(spare, key=lambda w: (hosts.spanned((w.index, gone)), w.bytes)).index
        workers = tuple(taker if w == gone else w for w in layout.workers)
        if len(workers) == 1:
            return Layout.on(taker)
        staying_all = {w.index for w in staying}
        if all(w in staying_all for w in workers):
            return Layout(Mesh(layout.mesh.shape, workers), placements)
    workers = rest or (min(staying, key=lambda w: (hosts.spanned((w.index, gone)), w.bytes)).index,)
    if len(workers) == 1:
        return Layout.on(workers[0])
    cut: Placement = next((p for p in placements if isinstance(p, Shard)), REPLICATE)
    return Layout(Mesh((len(workers),), workers), (cut,))


def moving(spec: Spec, layout: Layout, to: Layout, hosts: Hosts = ONE) -> Plan:
    """The plan that moves a tensor to another layout, under its own id. The tensor is slot 1 of the instruction
    (kind, tensor)."""
    draft = Draft(2)
    for worker, slot in Redistribution(draft, spec, layout, 1, 1, True, hosts).to(to).items():
        if slot != 1:
            draft.rename(worker, slot, 1)
    number, _ = free(1)
    for worker in layout.workers:
        if worker not in to.workers:
            draft.steps.setdefault(worker, []).append((draft.constant(number), 1))
    draft.relaid.clear()  # the result's layout already contains the partial sums reduced on the way
    return draft.plan((to,))
