"""A call of a sharded trace as one recording of each worker, with the collectives inside: a CUDA graph with NCCL's kernels. All
members of the group record and replay it together, or none does: a member that replayed alone would wait on its device for
ever. So they agree before each call, by a small collective of which everyone's wish is an operand, and meet once more behind
it: who waits there in vain names the missing ones, and gives up, as in every other collective."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from gt.ops import Kind
from gt.ops.table import TABLE, infer
from gt.program import Program
from gt.program.code import Form, encoded, first_result
from gt.spec import Spec, int32
from gt.worker.engine import Engine
from gt.worker.programs.compile import COLLECTIVE, Ready

NEVER, NOT_NOW, RECORD = -1, 0, 1  # wishes; above them, RECORD and the number of the recording to replay
WISHES = Spec((2,), int32)


class GroupPeers(Protocol):
    """The part of the worker's collectives (`gt.worker.collectives.mail.Collectives`) that is used here."""

    engine: Engine

    def begin(self, client: str, kind: Kind, operands: list[Any], tag: int) -> Any: ...
    def records(self, members: tuple[int, ...]) -> bool: ...
    def recorder(self, members: tuple[int, ...]) -> Any: ...


class GroupRecording(Protocol):
    """A worker's recording of a trace with collectives."""

    def wish(self, call: tuple) -> int:
        """The ability of this worker for a call: NOT_NOW, NEVER, RECORD, or RECORD and the number of its recording."""

    def prepare(self, call: tuple) -> None:
        """Run the trace once before it is recorded, as a recording must meet nothing for the first time; all members do."""

    def record(self, call: tuple) -> None:
        """Record it; all members do, once all have prepared."""

    def replay(self, call: tuple) -> list[Any]:
        """The results of a call, which also frees the inputs that end with it; all members replay."""

    def stats(self) -> dict[str, float]: ...


def decided(least: int, most: int) -> int:
    """The action of all, by the least and the largest wish: replay if all have the same recording, record if all can."""
    return least if least <= NOT_NOW or least == most else RECORD


def agreed_kind(group: tuple[int, ...]) -> Kind:
    """The collective of the members' wishes."""
    return infer(TABLE["all_reduce"], (WISHES, int), (group, "min"))


def agreement(client: str, collectives: GroupPeers, group: tuple[int, ...]) -> Ready:
    """The same as an instruction, for a member that cannot have a wish."""
    kind = agreed_kind(group)
    return Ready(kind, partial(collectives.begin, client, kind), form=COLLECTIVE)


class RecordedKind(Ready):
    """The instruction that stands for a call: a collective of the group with the trace's results."""

    __slots__ = ("program", "name")
    source = "sharded trace"
    program: Program
    name: str

    @property
    def title(self) -> str:
        return self.name


class RecordedTrace:
    """`trace` is the ShardedTrace; `replayed`: the call at hand needs no other instruction."""

    def __init__(self, trace: Any, recording: GroupRecording, collectives: GroupPeers, group: tuple[int, ...]) -> None:
        self.recording, self.collectives, self.group = recording, collectives, group
        self.space, self.client = trace.space, trace.space.client
        self.replayed, self.never = False, False
        self.call: tuple = ()
        program, form = trace.program, trace.form
        specs = program.specs
        self.used = tuple(at for i, at in enumerate(form.tensor_positions, 1) if i in specs)
        self.results = form.results
        self.kind = agreed_kind(group)
        ready = self.ready = RecordedKind(self.kind, self._begin, form=COLLECTIVE)
        ready.program, ready.name = program, trace.title
        ready.encoding = Form.of_call(trace.result_count, len(self.used), 1)
        ready.tensor_positions, ready.result_count = ready.encoding.tensor_positions, trace.result_count
        ready.specs = tuple(specs[i] for i in range(1, 1 + program.inputs) if i in specs)
        ready.results = tuple(specs[r] for r in program.results)
        ready.ops, ready.limits = {}, ()
        own = dict(zip(self.used, ready.tensor_positions))
        dying = (form.tensor_positions[i] for i in program.dying)
        ready.dies = tuple(own[at] for at in dying if at in own)

    def wanted(self) -> bool:
        """Whether to ask the members. All of them know the group's transport, the same, since their first call."""
        return not self.never and self.collectives.records(self.group)

    def instruction(self, number: int, call: tuple) -> tuple:
        self.call, self.replayed = call, False
        tag = first_result(call) if self.ready.result_count else 0
        return encoded(number, call[self.results], (*(call[at] for at in self.used), tag))

    def _begin(self, operands: list[Any], tag: int) -> RecordedCall:
        operands.clear()  # the recording takes them from the client's table: a list would keep them alive
        return RecordedCall(self, tag)


class RecordedCall:
    """A call in progress: the agreement of all members, then the collective that follows it."""

    def __init__(self, trace: RecordedTrace, tag: int) -> None:
        self.trace, self.tag, self.kind = trace, tag, trace.kind
        self.made: list[Any] | None = None  # the results, once the replay is launched
        self.prepared = self.recorded = False
        self.inner = self._meet(trace.recording.wish(trace.call))

    def _meet(self, wish: int) -> Any:
        trace = self.trace
        wishes = trace.collectives.engine.load(memoryview(bytearray(_pair(wish))), WISHES, True)
        return trace.collectives.begin(trace.client, self.kind, [wishes], self.tag)

    def ready(self) -> bool:
        while self.inner.ready():
            if self.made is not None:
                return True
            act = self._agreed()
            if act <= NOT_NOW or (act == RECORD and self.recorded):  # no second recording for one call
                self.trace.never |= act == NEVER
                return True
            self._act(act)
        return False

    def _agreed(self) -> int:
        try:
            found = self.inner.result()[0]
        except Exception:  # a member is lost or gave up: the trace's own collectives raise it, each for its results
            return NOT_NOW
        least, most = memoryview(self.trace.collectives.engine.store(found, WISHES)).cast("i")
        return decided(least, -most)

    def _act(self, act: int) -> None:
        trace = self.trace
        try:
            if act == RECORD and not self.prepared:
                self.prepared = True
                trace.recording.prepare(trace.call)
            elif act == RECORD:
                self.recorded = True
                trace.recording.record(trace.call)
                act = trace.recording.wish(trace.call)
            else:
                self.made, trace.replayed = [], True  # inputs may be overwritten from here on
                self.made = trace.recording.replay(trace.call)
        except Exception as error:  # a device may raise anything; the others wait for this worker on theirs
            text = f"{trace.ready.title} failed in a recording: {type(error).__name__}"
            self.inner = trace.collectives.begin(trace.client, self.kind, [trace.space.failure(text, self.tag)], self.tag)
            self.inner.give_up(text)  # their devices wait, too
            return
        self.inner = self._meet(act)

    def result(self) -> list[Any]:
        if self.made is None:
            return []
        self.inner.result()  # raises if a member was lost or gave up
        return self.made

    def ask(self) -> None:
        self.inner.ask()

    def missing(self) -> list[int]:
        return self.inner.missing()

    def give_up(self, why: str) -> None:
        self.inner.give_up(why)


def _pair(wish: int) -> bytes:
    return b"".join(n.to_bytes(4, "little", signed=True) for n in (wish, -wish))
