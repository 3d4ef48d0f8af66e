"""Quotas of a worker's memory for a client, and for all clients of one user. The bytes that an instruction adds are known
before it runs; freed bytes are found by counting all buffers when the sum reaches the quota."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gt.errors import OutOfMemory
from gt.program.code import first_result
from gt.transport.messages import Came
from gt.worker.client_values import Broken, ClientValues, Code, Moved
from gt.worker.engine import Engine
from gt.worker.programs.compile import COLLECTIVE, FREED, LEAST, Executable, Ready, growth_of

Fail = Callable[[ClientValues, tuple[Any, ...], Exception], None]


def held(values: Iterable[ClientValues], engine: Engine) -> int:
    """Bytes of all buffers of these clients' tensors, on the device or in host memory, each buffer once and none as less than
    LEAST."""
    arrays = (a for v in values for a in (*v.table.values(), *(came for _, came in v.arrived.values() if came is not None)))
    found = (a.buffer if type(a) is Moved else engine.buffer(a) for a in arrays if not isinstance(a, Broken))
    return sum(max(nbytes, LEAST) for nbytes in dict(found).values())


def may_share(ready: Any) -> bool:
    """Whether the result of an instruction may lie in the memory of an operand."""
    return isinstance(ready, Ready) and ready.kind.row.view


def copied(values: ClientValues, ready: Any, ins: tuple[Any, ...], engine: Engine) -> int:
    """Bytes that such an instruction, which has run, has added: none where its result does lie there."""
    operands = [ins[i] for i in ready.tensor_positions]
    result = first_result(ins)
    arrays = [values.table.get(id) for id in (result, *operands)]
    if isinstance(arrays[0], (Broken, Moved, type(None))):
        return 0
    buffers = [engine.buffer(a)[0] for a in arrays if not isinstance(a, (Broken, Moved, type(None)))]
    shares = buffers[0] in buffers[1:] and result not in operands  # a result in its operand's place has nothing to compare with
    return 0 if shares else sum(max(spec.nbytes, LEAST) for spec in ready.results)


def growth(ready: Any) -> int:
    """Bytes that an instruction adds: its results, less its dying inputs; 0 for an op that may give a view (see `copied`)."""
    if isinstance(ready, Executable):
        return ready.growth
    return 0 if may_share(ready) else growth_of(ready)


class Quota:
    """A limit on the memory of some clients together. `bytes` is an upper bound of their memory."""

    def __init__(self, limit: int, whose: str) -> None:
        self.limit, self.whose, self.bytes = limit, whose, 0
        self.members: dict[str, ClientValues] = {}

    def take(self, nbytes: int, engine: Engine) -> None:
        """Reserve `nbytes`, or raise OutOfMemory."""
        if self.bytes + nbytes > self.limit:
            self.bytes = held(self.members.values(), engine)
            if self.bytes + nbytes > self.limit:
                would = f"{nbytes:,} bytes more would make {self.bytes + nbytes:,}"
                raise OutOfMemory(f"{would}: {self.whose} may have {self.limit:,} on each worker (memory=, GT_MEMORY)")
        self.bytes += nbytes


class Quotas:
    """The quotas of all clients of a worker."""

    def __init__(self) -> None:
        self.came: dict[str, Came] = {}
        self.own: dict[str, Quota] = {}  # by client
        self.users: dict[str, Quota] = {}  # by user
        self.exceeded = 0  # instructions that were refused

    def introduce(self, came: Came) -> None:
        self.came[came.client] = came
        if came.memory:
            self.own[came.client] = Quota(came.memory, "this client")
        if came.user_memory and came.user not in self.users:
            self.users[came.user] = Quota(came.user_memory, f"user {came.user}")

    def of(self, values: ClientValues) -> list[Quota]:
        """The quotas that apply to a client, which has these values."""
        came = self.came.get(values.client)
        if came is None:
            return []
        found = [q for q in (self.own.get(came.client), self.users.get(came.user)) if q is not None]
        for quota in found:
            quota.members[came.client] = values
        return found

    def forget(self, client: str) -> None:
        came = self.came.pop(client, None)
        self.own.pop(client, None)
        group = self.users.get(came.user) if came is not None else None
        if group is not None:
            group.members.pop(client, None)
            if not any(c.user == came.user for c in self.came.values()):  # type: ignore[union-attr]
                del self.users[came.user]  # type: ignore[union-attr]

    def watch(self, values: ClientValues, code: Code, engine: Engine, fail: Fail) -> Code:
        """The same instructions without the ones that exceed a quota; `fail` is called with each of these."""
        quotas = self.of(values)
        return self._checked(quotas, values, code, engine, fail) if quotas else code

    def _checked(self, quotas: list[Quota], values: ClientValues, code: Code, engine: Engine, fail: Fail) -> Code:
        kinds = values.kinds
        adds: dict[int, int] = {}
        views: dict[int, Any] = {}  # kinds whose results may share memory
        for ins in code:
            number = ins[0]
            nbytes = adds.get(number, -1)
            if nbytes < 0:
                form, _, ready = kinds.get(number, (FREED, None, None))
                nbytes = adds[number] = growth(ready) if form != FREED else 0
                if form != FREED and may_share(ready):
                    views[number] = ready
            if nbytes and kinds[number][0] == COLLECTIVE:
                for quota in quotas:
                    quota.bytes += (
                        nbytes  # a collective is executed in any case, as peers wait for it; later instructions may be refused
                    )
            elif nbytes:
                try:
                    for quota in quotas:
                        quota.take(nbytes, engine)
                except OutOfMemory as exceeded:
                    self.exceeded += 1
                    values.over_quota += 1
                    fail(values, ins, exceeded)
                    continue
            yield ins
            if number in views and (more := copied(values, views[number], ins, engine)):
                self._add_copy(quotas, values, ins, more, engine, fail)

    def _add_copy(
        self, quotas: list[Quota], values: ClientValues, ins: tuple[Any, ...], nbytes: int, engine: Engine, fail: Fail
    ) -> None:
        """The result of an instruction that has run turned out to be a copy. One that is over a quota does not stay."""
        id = first_result(ins)
        held_before, values.table[id] = values.table[id], Broken("OutOfMemory", "", id)  # `held` leaves it out
        try:
            for quota in quotas:
                quota.take(nbytes, engine)
            values.table[id] = held_before
        except OutOfMemory as exceeded:
            self.exceeded += 1
            values.over_quota += 1
            fail(values, ins, exceeded)

    def uploaded(self, values: ClientValues, nbytes: int, engine: Engine) -> None:
        """Raise if the bytes of a client's upload exceed a quota."""
        for quota in self.of(values):
            quota.take(max(nbytes, LEAST), engine)

    def stats(self, values: ClientValues, engine: Engine) -> dict[str, int]:
        """The memory of a client on this worker, and its quota."""
        came = self.came.get(values.client)
        return {"bytes": held([values], engine), "memory": came.memory if came is not None else 0}
