"""The values that a worker holds for a client, and the stand-ins for tensors that failed or are in host memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from operator import itemgetter
from typing import Any

from gt.errors import RemoteError, WorkerLost
from gt.ops import Kind
from gt.program import Program, wire
from gt.program.code import FREES, by_result, first_result, kind_table
from gt.program.wire import TraceDef
from gt.spec import Spec
from gt.worker.engine import Engine
from gt.worker.engine.host_copy import HostCopy
from gt.worker.programs.compile import COLLECTIVE, FREED, TRACE, Executable, Ready, Turns
from gt.worker.programs.sharded import SEGMENTS, RefusedShare, ShardedTrace
from gt.worker.programs.ticks import Ticks
from gt.worker.programs.units import Unit
from gt.worker.refusals import RefusedKind
from gt.worker.tracebacks import Traceback
from gt.worker.unreported import Columns

CONSTANTS = 1 << 24  # most bytes of constants in all programs of a client, which no quota counts


class Broken:
    """In place of a tensor that could not be computed: the first cause."""

    __array_ufunc__ = None

    def __init__(self, error: str, reason: str, tensor: int, traceback: Traceback | None = None) -> None:
        self.error, self.reason, self.tensor, self.traceback = error, reason, tensor, traceback

    @property
    def text(self) -> str:
        """The reason, and the traceback, if there is one."""
        return self.reason if self.traceback is None else f"{self.reason}\n\nthere\n{self.traceback}".rstrip()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this tensor was not computed: an earlier instruction failed")


class Moved:
    """In place of a tensor whose buffer is in host memory. `ids` are the tensors of that buffer, `index` is the position of
    this one among them."""

    __slots__ = ("copy", "ids", "index")
    __array_ufunc__ = None

    def __init__(self, copy: HostCopy, ids: list[int], index: int) -> None:
        self.copy, self.ids, self.index = copy, ids, index

    @property
    def array(self) -> Any:
        """The array in host memory, for reads only; kernels need it on the device."""
        return self.copy.arrays[self.index]

    @property
    def buffer(self) -> tuple[int, int]:
        """As an engine's `buffer`, with a negative number, which no engine uses."""
        return -id(self.copy), self.copy.nbytes

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("this tensor lies in host memory")


class Poisoned(BaseException):
    """The device is unusable: this worker ends, and another is started. A BaseException, so that error handlers do not catch
    it."""


def check_device(engine: Engine, error: Exception) -> None:
    """Raise Poisoned if an error has left the device unusable. The message does not name the client whose kernel failed, as all
    clients with values here receive it."""
    if engine.poisoned(error):
        raise Poisoned(f"a kernel failed and left {engine.device} unusable: {str(error).splitlines()[0][:200]}") from None


def failure(what: str, error: Exception, id: int) -> Broken:
    """The stand-in for a tensor whose computation raised this error."""
    name = "RemoteIndexError" if isinstance(error, IndexError) else "RemoteError"
    name = "OutOfMemory" if out_of_memory(error) else "LinAlgError" if of_a_matrix(error) else name
    return Broken(name, f"{what}: {type(error).__name__}: {error}", id, Traceback(error))


def failure_on(where: str, what: str, error: Exception, id: Any) -> Broken:
    """The same, with the worker's name; an error of another worker is kept unchanged."""
    id = id if type(id) is int else 0
    if isinstance(error, (WorkerLost, RemoteError)):
        return Broken(type(error).__name__, str(error), id)
    return failure(f"{what} failed on {where}", error, id)


class BrokenInput(TypeError):
    """An input of a program is broken."""


def check_inputs(table: dict[int, Any], ready: Any, ins: tuple) -> None:
    """Raise if a program has a broken input: it would free inputs before it fails, and the cause with them."""
    if any(isinstance(table.get(ins[i]), Broken) for i in ready.tensor_positions):
        raise BrokenInput(f"{ready.title} has an input that was not computed")


def run_general(table: dict[int, Any], ready: Any, ins: tuple) -> None:
    """Run a kernel with any operands, tensors or numbers, and any number of results."""
    operands = list(ins[ready.encoding.operands])
    for at, operand in ready.placed:
        operands[operand] = table[ins[at]]
    made = ready.watched(*operands)
    if ready.result_count == 1:
        table[first_result(ins)] = made
    else:
        table.update(by_result(ins, made))


# Messages of allocators without an exception class of their own: CUDA and mimalloc (PyTorch on ARM), PyTorch's default
# allocator on x86-64, a tensor larger than the address space (PyTorch, NumPy), cuBLAS, OpenCL.
_NO_MEMORY = (
    *(
        "out of memory",
        "not enough memory",
        "can't allocate memory",
        "cannot allocate memory",
        "storage size calculation overflow",
    ),
    *("array is too big", "alloc_failed", "out_of_host_memory", "mem_object_allocation_failure"),
)


def of_a_matrix(error: Exception) -> bool:
    """Whether an engine's library reports a singular matrix or another numerical failure."""
    return type(error).__name__.lstrip("_") == "LinAlgError"


def out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(said in text for said in _NO_MEMORY)


Code = Iterator[tuple[Any, ...]]  # instructions in the order of execution
NUMBER = itemgetter(0)  # the kind's number of an instruction


class ClientValues:
    """A worker's state of one client."""

    __slots__ = (
        "client",
        "turns",
        "ticks",
        "table",
        "specs",
        "arrived",
        "kinds",
        "counts",
        "forget",
        "units",
        "has_sharded",
        "within",
        "blamed",
        "segment",
        "warnings",
        "warned",
        "broken",
        "executed",
        "reported",
        "moved",
        "used",
        "guarded",
        "failures",
        "over_quota",
        "watched",
    )

    def __init__(self, client: str = "", turns: Turns | None = None, ticks: Ticks | None = None) -> None:
        self.client = client
        self.turns = turns  # which may preempt programs
        self.ticks = ticks  # told of the ends of instructions inside of programs
        self.table: dict[int, Any] = {}
        self.specs: dict[int, Spec | None] = {}  # of the tensors in the table, and of some freed ones
        self.arrived: dict[int, tuple[Any, Any]] = {}  # uploads that no instruction has taken yet
        self.kinds: dict[int, tuple[int, Any, Any]] = kind_table((FREED, None, FREES))  # form, kernel, and its Ready
        self.counts: Counter[int] = Counter()  # uses of each kind
        self.forget = 0
        self.units: OrderedDict[tuple, Unit] = OrderedDict()  # by topology, the most recently used last
        self.has_sharded = False  # whether there are sharded traces
        self.within = 0  # first result of the current call of a sharded trace
        self.blamed: dict[int, int] = {}  # by local value of the current call, the client's tensor to name if it fails
        self.broken: list[int] = []  # results of the last Run that could not be computed
        self.segment = count(SEGMENTS, -1).__next__
        self.warnings: list[str] = []  # for the client, sent at the end of the current run
        self.warned: set[str] = set()
        self.executed = self.reported = 0  # instructions executed, and reported to the dispatcher
        self.failures = self.over_quota = 0  # instructions that failed, and that a quota refused
        self.moved = 0  # upper bound of the tensors in host memory
        self.used = 0  # number of its last turn
        self.guarded = False  # whether the current run checks for operands in host memory
        self.watched: Columns | None = None  # set while there is an observer of its work

    def put(self, id: int, spec: Spec, array: Any) -> None:
        self.table[id], self.specs[id] = array, spec

    def failure(self, text: str, tensor: int) -> Broken:
        """The cause that stands in the place of a tensor that could not be computed."""
        return Broken("RemoteError", text, tensor)

    def note_broken(self, id: int) -> None:
        """A result of the current run could not be computed; a report may be made before the run ends."""
        self.broken.append(id)
        if self.watched is not None:
            self.watched.broken.append(id)

    def forget_specs(self) -> None:
        """Drop the specs of freed tensors. Dropping each one at its free would cost more."""
        specs = self.specs
        kept = {id: specs[id] for id in self.table if id in specs}
        specs.clear()
        specs.update(kept)

    def warn(self, text: str) -> None:
        """Add a warning for the client, once."""
        if text not in self.warned:
            self.warned.add(text)
            self.warnings.append(text)

    def define(
        self, trace: TraceDef, engine: Engine, compile: bool, say: Callable[..., None], show: Callable[[str, Program], None],
        collectives: Any = None,
    ) -> None:  # fmt: skip
        """Define a trace as one program, or as several between its collectives."""
        program = wire.read(trace, self._kind)
        known = {n: self.kinds[n] for n in program.kinds}
        if any(form == COLLECTIVE for form, _, _ in known.values()):
            sharded = ShardedTrace(program, self, engine, say, show, collectives)
            self.kinds[trace.number], self.has_sharded = (TRACE, sharded.code, sharded), True
            return
        ready = {n: r for n, (_, _, r) in known.items()}
        executable = Executable(
            program,
            ready,
            engine,
            compile,
            say,
            self.warn,
            show=show,
            turns=self.turns,
            ticks=self.ticks,
            constants=self.room_for_constants(),
        )
        self.kinds[trace.number] = (TRACE, executable.run, executable)

    def room_for_constants(self) -> int:
        """Bytes of constants that another program may have."""
        return CONSTANTS - sum(ready.constant_bytes for _, _, ready in self.kinds.values() if isinstance(ready, Executable))

    def refuse(self, trace: TraceDef, wrong: Exception, collectives: Any) -> None:
        """Define a trace that cannot be prepared: its calls fail."""
        refused = RefusedKind.trace(trace, wrong)
        if any(map(self.is_collective, trace.body)):
            refused, self.has_sharded = RefusedShare(trace, wrong, self, collectives), True
        self.kinds[trace.number] = (TRACE, refused.run, refused)

    def is_collective(self, code: Sequence[Any]) -> bool:
        """Whether an instruction of a definition, which may be invalid, is a collective."""
        return bool(code) and code[0] in self.kinds and self.kinds[code[0]][0] == COLLECTIVE

    def _kind(self, number: int) -> Kind | None:
        """The kind of this number, if it is defined and usable in programs."""
        ready = self.kinds[number][2] if number in self.kinds else None
        return ready.kind if isinstance(ready, Ready) else None

    def parts(self, number: int) -> list[int]:
        """The numbers that are dropped with this one."""
        ready = self.kinds[number][2] if number in self.kinds else None
        return [number, *ready.segments] if isinstance(ready, (ShardedTrace, RefusedShare)) else [number]

    def add_counts(self, code: list[tuple]) -> None:
        """Count the kinds of executed instructions."""
        counts = self.counts
        if len(code) > 32:
            counts.update(map(NUMBER, code))
        else:
            for ins in code:  # (Counter.update takes longer for the few instructions of a read)
                counts[ins[0]] += 1
