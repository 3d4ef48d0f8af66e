"""The stream of each client, on its way to workers: every instruction planned and written for those that execute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gt.dispatcher import policy, spread
from gt.dispatcher.joint import Joint, filled, learn, marked
from gt.dispatcher.plan import Plan, choose
from gt.dispatcher.tables import Client, Lost, Tables, TraceUse, Use, Worker
from gt.dispatcher.traces import choose_trace, expand
from gt.errors import ProtocolError
from gt.spec import Layout
from gt.transport.messages import (
    FREE,
    Ack,
    Ask,
    Batch,
    Configure,
    Failed,
    Fetch,
    KindDef,
    Mail,
    Run,
    TraceDef,
    kind_in,
)  # fmt: skip

Watch = Callable[[str, str, Any], None]


class Stream:
    """What a dispatcher does with batches. Who is there, and who asks what, is the dispatcher's."""

    tables: Tables
    watch: Watch | None
    auto_shard: bool

    def _told(self, client: Client, message: Ask | Configure) -> Iterable[Mail]:
        raise NotImplementedError

    def _dropped(self, peer: str, wrong: ProtocolError) -> None:
        raise NotImplementedError

    def _batch(self, client: Client, batch: Batch) -> Iterable[Mail]:
        if not client.held and client.uploading is None:
            return self._run(client, batch)
        gone = [get for get in batch.gets if isinstance(client.layouts.get(get[1]), Lost)]  # no need to wait for those
        client.held.append(msgspec.structs.replace(batch, gets=tuple(g for g in batch.gets if g not in gone)))
        flow = _Flow()
        for ticket, id, spec in gone:
            self._get(client, ticket, id, spec, flow)
        return flow.mail

    def _resume(self, client: Client) -> Iterable[Mail]:
        while client.held and client.home is not None and client.uploading is None:
            message = client.held.popleft()
            try:
                yield from self._run(client, message) if isinstance(message, Batch) else self._told(client, message)
            except ProtocolError as wrong:  # this client's alone: whoever came may be waited for by others
                self._dropped(client.name, wrong)

    def _run(self, client: Client, batch: Batch) -> list[Mail]:
        for definition in batch.kinds:
            kind = kind_in(definition)
            if kind.row.talks:
                raise ProtocolError(f"{kind.row} is not a client's to define")
            client.uses[self._unused(client, definition.number)] = Use(definition, kind)
        for trace in batch.traces:
            client.uses[self._unused(client, trace.number)] = TraceUse(trace, client.uses)
        if self.watch is not None:
            self.watch("batch", client.label, (client, batch))
        flow = _Flow()
        stop = self._rewrite(client, batch.code, flow)
        if stop is not None:
            done = batch.code[:stop]
            rest = Batch(batch.serial, (), batch.code[stop:], batch.gets, batch.ack, batch.forget, (), batch.drops)
            client.held.appendleft(rest)
            batch = Batch(batch.serial, (), done)
        client.instructions += len(batch.code)
        for ticket, id, spec in batch.gets:
            self._get(client, ticket, id, spec, flow)
        ack = batch.ack or self.watch is not None
        if ack:
            used = set(client.told) | set(flow.code)
            if used:
                client.acks[batch.serial] = used
            else:
                flow.mail.append(Mail(client.name, Ack(batch.serial)))
        if batch.forget:
            self._forget(client, batch.forget)
        for number in batch.drops:
            client.uses.pop(number, None)
            for told in client.told.values():
                told.discard(number)
        drops = batch.drops
        if drops:
            gone = set(drops)
            drops += self._drop_joints(client, gone)
            client.plans = {k: p for k, p in client.plans.items() if k[0] not in gone}
        workers = self.tables.workers
        busy = set(flow.code) | set(flow.gets) | set(flow.kinds) | set(flow.traces)
        if ack:
            busy |= client.acks.get(batch.serial, set())
        runs = [
            Mail(workers[w].peer, Run(client.name, batch.serial, tuple(flow.kinds.get(w, ())), flow.code.get(w, []),
                                      tuple(flow.gets.get(w, ())), ack, batch.forget,
                                      tuple(flow.traces.get(w, ())), drops))
            for w in sorted(busy)
        ]  # fmt: skip
        if self.watch is not None:
            for w, mail in zip(sorted(busy), runs):
                self.watch("run", workers[w].name, (client, mail.message))
        return runs + flow.mail

    def _drop_joints(self, client: Client, traces: set[int]) -> tuple[int, ...]:
        """The numbers of what these traces were planned as, forgotten."""
        joints = {p.number for k, p in client.plans.items() if k[0] in traces and isinstance(p, Joint)}
        client.locals = {k: n for k, n in client.locals.items() if n not in joints}
        for told in client.told.values():
            told -= joints
        return tuple(joints)

    def _unused(self, client: Client, number: int) -> int:
        """A kind's number has one meaning for good: workers are told it once."""
        if number <= FREE or number in client.uses:
            raise ProtocolError(f"{number} cannot be the number of another kind")
        return number

    def _rewrite(self, client: Client, code: list, flow: _Flow) -> int | None:
        """Each instruction to its workers. Gives the position to go on from, where an upload must arrive first or there is no
        worker for what is made of nothing."""
        layouts, plans, uses, queues = client.layouts, client.plans, client.uses, flow.code
        here = Layout.on(client.home) if client.home is not None else None
        many = self.tables.many
        for position, ins in enumerate(code):
            try:
                number = ins[0]
                if number == FREE:
                    layout = layouts.pop(ins[1], None)
                    if type(layout) is Layout:
                        if many:
                            policy.uncount(self.tables, client, ins[1], layout)
                        queue = queues.get(layout.solo)  # type: ignore[arg-type]  # None: there is no such queue
                        if queue is not None:
                            queue.append(ins)
                        else:
                            for w in layout.workers:
                                flow.queue(w).append(ins)
                    continue
                use = uses[number]
                if len(ins) != use.length:
                    raise IndexError
                at = use.at
                if len(at) == 2:
                    key: tuple = (number, layouts[ins[at[0]]], layouts[ins[at[1]]])
                elif len(at) == 1:
                    key = (number, layouts[ins[at[0]]])
                elif at:
                    key = (number, *[layouts[ins[i]] for i in at])
                elif here is None:
                    return position
                else:
                    key = (number, policy.place(self.tables, client) if many and not use.signal else here)
                plan = plans.get(key)
                if plan is None:
                    plan = self._plan(client, use, key, flow)
                    if plan is None:
                        self._lost(client, use, ins, key, flow)
                        continue
                if plan.solo is None:
                    if self._spread(client, use, code, position, key, plan, flow):
                        return position + 1
                    continue
            except (KeyError, IndexError):
                self._unknown(client, ins)
                continue
            queue = queues.get(plan.solo)
            if queue is None:
                queue = flow.queue(plan.solo)
            queue.append(ins)
            if use.outs == 1:
                layouts[ins[1]] = plan.out
            else:
                for i, out in enumerate(plan.outs):
                    layouts[ins[1 + i]] = out
            if many and use.sizes:
                for i, size in enumerate(use.sizes):
                    policy.count(self.tables, client, ins[1 + i], size, plan.outs[i])
            for i in use.dies:
                gone = layouts.pop(ins[i], None)
                if many and type(gone) is Layout:
                    policy.uncount(self.tables, client, ins[i], gone)
            if use.loads and ins[-3] == -1:
                assert isinstance(use, Use)
                queue.pop()
                flow.mail.append(spread.upload(client, ins[1], use.kind.outs[0], plan.out))
                return position + 1
        return None

    def _spread(self, client: Client, use: Any, code: list, position: int, key: tuple, plan: Any, flow: _Flow) -> bool:
        """An instruction for several workers. Whether an upload must arrive before the next."""
        ins = code[position]
        if isinstance(use, TraceUse):
            self._call(client, use, ins, key, plan, flow)
            return False
        if plan.relaid and spread.bucket(client, code, position, use, plan, flow):
            return self._rewrite(client, [ins], flow) is not None
        if len(use.at) > 1:
            same = spread.alias(ins, use.at)
            if same != tuple(range(len(use.at))):
                plan = client.plans.get((*key, same)) or self._plan(client, use, key, flow, same)
        for id, out, size in zip(ins[1:], plan.outs, use.sizes):
            client.layouts[id] = out
            policy.count(self.tables, client, id, size, out)
        if use.loads and ins[-3] == -1:
            flow.mail.append(spread.upload(client, ins[1], use.kind.outs[0], plan.out))
            return True
        plan.write(ins, flow.code)
        for slot, layout in plan.relaid:
            client.layouts[ins[slot]] = layout
        return False

    def _call(self, client: Client, use: TraceUse, call: tuple, key: tuple, plan: Any, flow: _Flow) -> None:
        """A call of a trace that concerns several workers."""
        if use.makes and use.at:
            key = (*key, policy.place(self.tables, client))
            plan = client.plans.get(key)
        if isinstance(plan, Joint):
            plan.write(self.tables, client, use, call, flow)
            return
        ids = [call[i] for i in use.at]
        keep = self.watch is None and len(set(ids)) == len(ids)  # the log spells out each op
        lines = expand(client, use, marked(use, call))
        apart = flow.beside()
        self._rewrite(client, lines, apart)
        for worker, code in apart.code.items():
            flow.queue(worker).extend(filled(code, call))
        joint = learn(client, use, call, key[1 : 1 + len(use.at)], apart.code, lines) if keep else None
        if joint is not None:
            client.plans[key] = joint

    def _plan(self, client: Client, use: Use | TraceUse, key: tuple, flow: _Flow, same: tuple = ()) -> Any:
        """A plan for operands laid out so, and the workers told of its kinds; None where an operand is lost."""
        layouts = key[1:]
        if any(type(x) is Lost for x in layouts):
            return None
        plan: Any
        if isinstance(use, TraceUse):
            plan = Plan(None, ()) if spread.signalled(client, use) else choose_trace(use, layouts)
        else:
            where, living = None, [w.index for w in self.tables.living()]
            if use.kind.signal:
                where = spread.target(client, use.kind.signal, living, flow)
            elif not use.kind.tensors and (self.auto_shard or "" in client.signals) and len(living) > 1:
                where = policy.auto(use.kind.outs[0], living)
            plan = choose(use.kind, layouts, where, same)
            if plan.solo is None:
                plan = spread.bind(client, use, plan, flow)
        client.plans[(*key, same) if same else key] = plan
        if plan.solo is not None:
            self._tell(client, plan.solo, use, flow)
        return plan

    def _tell(self, client: Client, worker: int, use: Use | TraceUse, flow: _Flow) -> None:
        """Make sure a worker knows a kind or trace, and the kinds that one is made of."""
        told = client.told.setdefault(worker, set())
        number = use.definition.number
        if number in told:
            return
        told.add(number)
        if isinstance(use, TraceUse):
            for n in use.kinds:
                self._tell(client, worker, client.uses[n], flow)
            flow.traces.setdefault(worker, []).append(use.definition)
        else:
            flow.kinds.setdefault(worker, []).append(use.definition)

    def _lost(self, client: Client, use: Use | TraceUse, ins: tuple, key: tuple, flow: _Flow) -> None:
        """What is made of a lost tensor is lost, for the same reason; what was to end with it ends."""
        gone = next(x for x in key[1:] if type(x) is Lost)
        self._rewrite(client, [(FREE, ins[i]) for i in use.dies], flow)
        for id in ins[1 : 1 + use.outs]:
            client.layouts[id] = gone

    def _unknown(self, client: Client, ins: tuple) -> None:
        """An instruction that names what is not there: its results, as far as it has any, are lost."""
        self.tables.dropped += 1
        use = client.uses.get(ins[0]) if ins else None
        for id in ins[1 : 1 + use.outs] if use else ():
            client.layouts[id] = Lost("an instruction named a tensor that is not there", "ProtocolError")

    def _forget(self, client: Client, below: int) -> None:
        """Kinds below the last bound go; those up to this one may still be named by a thread that was about to."""
        last, client.forget = client.forget, below
        client.uses = {n: u for n, u in client.uses.items() if n >= last}
        client.plans = {k: p for k, p in client.plans.items() if k[0] >= last}
        client.plans = {k: p for k, p in client.plans.items() if p.solo is not None}
        client.locals.clear()  # a worker that forgets drops all kinds below zero
        client.kinds.clear()
        client.told = {w: {n for n in numbers if n >= max(last, 1)} for w, numbers in client.told.items()}

    # Bytes that a client has and workers want, where they share no memory

    def _arrived(self, worker: Worker, name: str, id: int) -> Iterable[Mail]:
        client = self.tables.clients.get(name)
        if client is not None and worker.alive and not isinstance(client.layouts.get(id), Layout):
            yield Mail(worker.peer, Run(name, 0, (), [(FREE, id)]))  # lost with another worker before it came here
        if client is None or client.uploading != id:
            return
        client.arriving.discard(worker.index)
        if client.arriving:
            return
        client.uploading = None
        yield from self._resume(client)

    # Reading

    def _get(self, client: Client, ticket: int, id: int, spec: tuple, flow: _Flow) -> None:
        layout = client.layouts.get(id)
        if not isinstance(layout, Layout):
            why, error = (layout.why, layout.error) if layout else ("no such tensor", "ProtocolError")
            flow.mail.append(Mail(client.name, Failed(ticket, error, why, id)))
            return
        if layout.solo is not None:
            shape = tuple(spec[1:])
            flow.gets.setdefault(layout.solo, []).append(Fetch(ticket, id, spec, (0,) * len(shape), shape))
            return
        read = spread.spec_of(spec, layout)
        if read is None:
            flow.mail.append(Mail(client.name, Failed(ticket, "ProtocolError", f"a read of {spec} from {layout}", id)))
            return
        if layout.partial:
            layout = spread.reduced(client, id, layout, read, flow)
        spread.fetch(ticket, id, read, layout, flow)

    def _done(self, worker: Worker, name: str, serial: int, broken: tuple[int, ...]) -> Iterable[Mail]:
        client = self.tables.clients.get(name)
        waiting = client.acks.get(serial) if client else None
        if client is None or waiting is None:
            return
        if self.watch is not None:
            self.watch("done", worker.name, (client, serial, broken))
        waiting.discard(worker.index)
        if not waiting:
            del client.acks[serial]
            if self.watch is not None:
                self.watch("ack", client.label, (client, serial))
            yield Mail(client.name, Ack(serial))


class _Flow:
    """What one batch sends to whom: code, new kinds and reads for each worker, and other mail."""

    __slots__ = ("code", "kinds", "traces", "gets", "mail")

    def __init__(self) -> None:
        self.code: dict[int, list] = {}
        self.kinds: dict[int, list[KindDef]] = {}
        self.traces: dict[int, list[TraceDef]] = {}
        self.gets: dict[int, list[Fetch]] = {}
        self.mail: list[Mail] = []

    def beside(self) -> _Flow:
        """A flow with code of its own."""
        other = _Flow()
        other.kinds, other.traces, other.gets, other.mail = self.kinds, self.traces, self.gets, self.mail
        return other

    def queue(self, worker: int) -> list:
        return self.code.setdefault(worker, [])
