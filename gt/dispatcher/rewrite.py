"""Plans a client's instructions and writes them for the workers that execute them. The results of a refused instruction carry
the reason."""

from __future__ import annotations

from typing import Any

from gt.dispatcher import loads, policy, sharding
from gt.dispatcher.flow import Flow
from gt.dispatcher.plan import Plan, choose
from gt.dispatcher.planning import Planning
from gt.dispatcher.sharded_programs import ShardedProgram
from gt.dispatcher.steps import SoloPlan
from gt.dispatcher.tables import Client, Entry, KindPlans, Lost, Refused, Tables, TracePlans, check_results, results_of
from gt.dispatcher.traces import choose_trace, expand
from gt.errors import ProtocolError
from gt.program.code import FIRST_RESULT, FREES, by_result, free, freed_id
from gt.spec import Layout

EXPANDED = 1 << 20  # most instructions that the expanded calls of one batch may have
LONG = 1 << 14  # most instructions of a trace that is planned as a whole: no other client has a turn meanwhile
SLICE = 1 << 11  # instructions times workers (some 0.05 s) that are planned before other clients have their turn
MANY = 16  # operands or results of an instruction that take as long as a worker's part of one for several
NEW = 4  # parts of instructions that take as long as a new plan; its worker may have a kernel to prepare
REASON = 500  # characters of a reason that a tensor carries
NOT_THERE = Lost("an instruction named an unknown kind or tensor", "ProtocolError")
NO_SUCH_LENGTH = Lost("an instruction has another length than its kind expects", "ProtocolError")


class Rewriter:
    """Turns a client's instructions into those of workers. With `auto_shard` new tensors are sharded over all workers."""

    def __init__(self, tables: Tables, auto_shard: bool = False) -> None:
        self.tables, self.auto_shard = tables, auto_shard
        self.left = SLICE  # of the cost that one message may have

    def rewrite(self, client: Client, code: list, flow: Flow, whole: bool = True) -> int | None:
        """Append each instruction to its workers' queues. Returns the position to continue from if the rest has to wait for the
        bytes of a load, for a worker that can create tensors, or, unless `whole`, for the turns of other clients; None if all
        are written."""
        entries, plans, uses, queues = client.entries, client.plans, client.uses, flow.code
        here = Layout.on(client.home) if client.home is not None else None
        many = self.tables.many
        for position, ins in enumerate(code):
            try:
                number = ins[0]
                use = uses[number]
                if use is FREES:
                    entry = entries.pop(ins[FIRST_RESULT], None)
                    if type(entry) is Entry:
                        if many or (solo := entry.solo) is None:
                            self._free(client, ins, entry, flow)
                        elif (queue := queues.get(solo)) is None:
                            queues[solo] = [ins]
                        else:
                            queue.append(ins)
                    continue
                if len(ins) != use.length:
                    raise IndexError
                tensor_count = use.tensor_count
                if tensor_count == 2:
                    first, second = use.tensor_positions
                    key: tuple = (number, entries[ins[first]], entries[ins[second]])
                elif tensor_count == 1:
                    key = (number, entries[ins[use.tensor_positions[0]]])
                elif tensor_count:
                    if tensor_count > MANY and self._long(client, tensor_count, whole):
                        return position
                    key = (number, *[entries[ins[i]] for i in use.tensor_positions])
                elif here is None:
                    return position
                else:
                    key = (number, policy.new_layout(self.tables, client) if many and not use.signal else here)
                    if use.loads:
                        ins = loads.read(client, ins)
                plan = plans.get(key)
                if plan is None:
                    if self._cut(client, whole):
                        return position
                    if (plan := self._new_plan(client, use, ins, key, flow)) is None:
                        continue
                solo = plan.solo
                if solo is None:
                    if self._spread(client, use, code, position, key, plan, flow) or self._cut(client, whole):
                        return position + 1
                    continue
                if use.result_count == 1:
                    id = ins[FIRST_RESULT]
                    if not id > 0:
                        check_results(client, (id,))
                    entries[id] = plan.entry
                else:
                    if use.result_count > MANY and self._long(client, use.result_count, whole):
                        return position
                    check_results(client, ins[use.form.results])
                    entries.update(by_result(ins, plan.entries))
            except Exception as wrong:  # an invalid instruction affects its own results alone, which carry the reason
                self._refused(client, ins, wrong, flow)
                if self._cut(client, whole):
                    return position + 1
                continue
            queue = queues.get(solo)
            if queue is None:
                queue = flow.queue(solo)
            queue.append(ins)
            if many:
                for id, entry in by_result(ins, plan.entries):
                    policy.count(self.tables, client, id, entry)
            if use.dies:
                self._forget_inputs(client, ins, use.dies)
            if use.loads and (solo not in client.attached or loads.uploaded(ins)):
                loads.begin(client, ins, plan.entry, {solo: [queue.pop()]}, flow)
                return position + 1
        return None

    def _cut(self, client: Client, whole: bool) -> bool:
        """Whether the rest of a client's message has to wait for the turns of other clients."""
        if self.left > 0 or whole:
            return False
        self.tables.cut_short(client)
        return True

    def _long(self, client: Client, length: int, whole: bool) -> bool:
        """Whether an instruction of so many operands or results has to wait for the turns of other clients."""
        if self._cut(client, whole):
            return True
        self.left -= length // MANY
        return False

    def _free(self, client: Client, ins: tuple, entry: Entry, flow: Flow) -> None:
        """Pass a free on to all workers that hold a piece of the tensor."""
        if self.tables.many:
            policy.uncount(self.tables, client, freed_id(ins), entry)
        for worker in entry.workers:
            flow.queue(worker).append(ins)

    def _forget_inputs(self, client: Client, ins: tuple, dies: tuple[int, ...]) -> None:
        """Forget the inputs that an instruction frees on its worker."""
        many = self.tables.many
        for i in dies:
            entry = client.entries.pop(ins[i], None)
            if many and type(entry) is Entry:
                policy.uncount(self.tables, client, ins[i], entry)

    def _spread(self, client: Client, use: Any, code: list, position: int, key: tuple, plan: Any, flow: Flow) -> bool:
        """Write an instruction for several workers, or refuse it. Returns whether the bytes of a load must arrive before the
        next one."""
        self.left -= len(self.tables.by_peer) * (use.result_count // MANY + 1)
        ins = code[position]
        if isinstance(plan, Lost):
            self._refuse(client, ins, plan, flow)
            return False
        check_results(client, ins[use.form.results], whole=True)
        if isinstance(use, TracePlans):
            self._call(client, use, code, position, key, plan, flow)
            return False
        if plan.relaid and sharding.bucket(client, code, position, use, plan, flow):
            return self.rewrite(client, [ins], flow) is not None
        if len(use.tensor_positions) > 1:
            same = sharding.alias(ins, use.tensor_positions)
            if same != tuple(range(len(use.tensor_positions))):
                plan = client.plans.get((*key, same)) or self._plan(client, use, key, flow, same)
                if isinstance(plan, Lost):
                    self._refuse(client, ins, plan, flow)
                    return False
        for id, entry in by_result(ins, plan.entries):
            client.entries[id] = entry
            policy.count(self.tables, client, id, entry)
        if use.loads:
            queues: dict[int, list] = {}
            plan.write(loads.read(client, ins), queues)
            return loads.begin(client, ins, plan.entries[0], queues, flow)
        plan.write(ins, flow.code)
        for slot, entry in plan.relaid:
            client.entries[ins[slot]] = entry
        return False

    def _call(
        self, client: Client, use: TracePlans, code: list, position: int, key: tuple, plan: Any, flow: Flow
    ) -> None:  # fmt: skip
        """Write a call of a trace for several workers. A call whose plan is not kept is replaced by its instructions."""
        call = code[position]
        if not set(call[use.form.results]).isdisjoint([call[i] for i in use.tensor_positions]):
            # A worker's part of a call is several programs: one would write over operands of the next one.
            raise ProtocolError(f"a call of trace {use.definition.number} names one tensor as an operand and as a result")
        if use.makes and use.tensor_positions:
            key = (*key, policy.new_layout(self.tables, client))
            plan = client.plans.get(key)
        if isinstance(plan, ShardedProgram):
            plan.write(self.tables, client, use, call, flow)
            return
        flow.expanded += len(use.definition.body)
        if flow.expanded > EXPANDED:
            raise ProtocolError(f"the calls of a batch expand to more than {EXPANDED} instructions")
        ids = [call[i] for i in use.tensor_positions]
        if len(set(ids)) < len(ids) or len(use.definition.body) > LONG:
            code[position + 1 : position + 1] = [ins for _, ins in expand(client, use, call)]
            return
        planning = Planning(client, use, call, key)
        client.unfinished = None if planning.advance(self, client, flow) else planning

    def _new_plan(self, client: Client, use: KindPlans | TracePlans, ins: tuple, key: tuple, flow: Flow) -> Any:
        """A plan for an instruction; None if an operand is lost, and then its results are marked as lost."""
        self.left -= NEW
        plan = self._plan(client, use, key, flow)
        if plan is None:
            self._lost(client, use, ins, key, flow)
        return plan

    def _plan(self, client: Client, use: KindPlans | TracePlans, key: tuple, flow: Flow, same: tuple = ()) -> Any:
        """A plan for these operands, with its kinds defined on the workers; None if an operand is lost, a `Lost` if no plan is
        possible."""
        known = key[1:]
        if any(type(x) is Lost for x in known):
            return None
        plan: Any
        try:
            for entry, spec in zip(known, use.specs):
                if spec is not None and entry.spec is not spec:
                    raise ProtocolError(f"expected an operand of {spec}, got {entry.spec}")
            plan = self._chosen(client, use, tuple(x.layout if type(x) is Entry else x for x in known), flow, same)
        except Exception as wrong:  # a sharding rule may fail on a faulty client's operands; the results carry the reason
            what = f"trace {use.definition.number}" if isinstance(use, TracePlans) else str(use.kind)
            plan = Lost(_reason(what, wrong), "ProtocolError")
        client.plans[(*key, same) if same else key] = plan
        if plan.solo is not None:
            self._define(client, plan.solo, use, flow)
        return plan

    def _chosen(self, client: Client, use: KindPlans | TracePlans, layouts: tuple, flow: Flow, same: tuple) -> Any:
        if isinstance(use, TracePlans):
            plan = Plan(None, ()) if sharding.signalled(client, use) else choose_trace(use, layouts)
            return plan if plan.solo is None else SoloPlan(plan.solo, tuple(map(Entry, plan.layouts, use.results)))
        where, living = None, [w.index for w in self.tables.staying(client)]
        if use.kind.signal:
            where = sharding.target(client, use.kind.signal, living, flow)
        elif not use.kind.tensor_operands and (self.auto_shard or "" in client.signals) and len(living) > 1:
            where = policy.auto(use.kind.outs[0], living)
        plan = choose(use.kind, layouts, where, same, self.tables.hosts, use.size == 1)
        if plan.solo is None:
            return sharding.bind(client, use, plan, flow)
        return SoloPlan(plan.solo, tuple(map(Entry, plan.layouts, use.results)))

    def _define(self, client: Client, worker: int, use: KindPlans | TracePlans, flow: Flow) -> None:
        """Define a kind, or a trace and its kinds, on a worker that lacks the definition."""
        told = client.told.setdefault(worker, set())
        number = use.definition.number
        if number in told:
            return
        told.add(number)
        if isinstance(use, TracePlans):
            for n in use.kinds:
                self._define(client, worker, client.uses[n], flow)
            flow.traces.setdefault(worker, []).append(use.definition)
            self.left -= len(use.definition.body)  # for so long its worker prepares it
        else:
            flow.kinds.setdefault(worker, []).append(use.definition)

    def _lost(self, client: Client, use: KindPlans | TracePlans, ins: tuple, key: tuple, flow: Flow) -> None:
        """Mark the results of an instruction with a lost operand as lost, and free its dying operands."""
        gone = next(x for x in key[1:] if type(x) is Lost)
        self._end(client, ins, use.dies, gone, flow)

    def _refused(self, client: Client, ins: tuple, wrong: Exception, flow: Flow) -> None:
        """Refuse an instruction that raised an error."""
        use = client.uses.get(ins[0]) if ins else None
        if isinstance(use, Refused):
            gone = use.lost
        elif isinstance(wrong, KeyError):
            gone = NOT_THERE
        elif isinstance(wrong, IndexError):
            gone = NO_SUCH_LENGTH
        else:
            gone = Lost(_reason("an instruction", wrong), "ProtocolError")
        self._refuse(client, ins, gone, flow)

    def _refuse(self, client: Client, ins: tuple, gone: Lost, flow: Flow) -> None:
        """Refuse an instruction: its results, if any, carry the reason."""
        flow.refused.append(gone.why)
        use = client.uses.get(ins[0]) if ins else None
        self._end(client, ins, use.dies if use is not None else (), gone, flow)

    def _end(self, client: Client, ins: tuple, dies: tuple[int, ...], gone: Lost, flow: Flow) -> None:
        """Free the dying operands of a refused instruction and the tensors that its results would have replaced."""
        self.left -= 1
        results = results_of(client, ins)
        frees = [ins[i] for i in dies if i < len(ins)] + [id for id in results if id in client.entries]
        self.rewrite(client, [free(id) for id in frees], flow)
        for id in results:
            client.entries[id] = gone


def _reason(what: str, wrong: Exception) -> str:
    text = str(wrong) if isinstance(wrong, ProtocolError) else f"{type(wrong).__name__}: {wrong}"
    return f"{what} cannot be carried out: {text}"[:REASON]
