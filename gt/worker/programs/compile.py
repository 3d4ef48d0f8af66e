"""Turns kinds and programs into callables. A program becomes one Python function of kernels over local variables; an engine
may replace it by a faster form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial
from types import CodeType
from typing import Any, Protocol

from gt.errors import ProtocolError
from gt.ops import Kind
from gt.ops.estimate import estimated_seconds
from gt.program import Hole, Instruction, Program
from gt.program.code import Form, by_result
from gt.program.stretch import pick
from gt.spec import Spec, bfloat16
from gt.worker.engine import Engine
from gt.worker.fair_queue import SLICE
from gt.worker.programs.codegen import KernelTable, PausePoints, kernel_name, straight_line
from gt.worker.programs.passes.constants import fold_constants
from gt.worker.programs.passes.fuse_lists import fuse_lists, fuse_pairs
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.in_place import write_in_place
from gt.worker.programs.passes.small_runs import small_runs
from gt.worker.programs.passes.unused import without_unused
from gt.worker.programs.peak import peak
from gt.worker.programs.ticks import Ticked, Ticks
from gt.worker.turns import LARGE, SLOW, Preempted

TRACE = 3  # the form of a call of a program
COLLECTIVE = 4  # the form of a collective
FREED = 5  # the form of a free
LEAST = 512  # bytes that a tensor counts as at least: PyTorch gives none less on a GPU, and its objects take as much
FEW = 4  # most ops of a program that may count as a small kernel
PAUSE = 0.00025  # estimated seconds between two pause points of a program


class Ready:
    """A kind resolved to a kernel. `form` is its calling form: 1 or 2 tensor operands and one result, or 0 for any other.
    `specs` are those of its tensor operands, `results` those of its results, `short` both; `encoding` has their positions in an
    instruction, `placed` the position and the operand index of each tensor."""

    __slots__ = (
        "run", "watched", "form", "kind", "encoding", "result_count", "tensor_positions", "placed", "ops", "ways", "dies",
        "specs", "results", "short", "large", "limits", "needs", "compared",
    )  # fmt: skip

    def __init__(self, kind: Kind, run: Callable, way: str = "", form: int | None = None) -> None:
        self.run, self.kind, self.result_count, self.dies = run, kind, len(kind.outs), ()
        self.watched = run  # the kernel outside programs, which raises Cancelled if its client has left
        self.encoding = Form.of(kind)
        self.tensor_positions = self.encoding.tensor_positions
        self.placed = tuple(zip(self.tensor_positions, kind.tensor_operands))
        plain = self.result_count == 1 and len(kind.tensor_operands) == len(kind.ins)
        elements = max((s.numel for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)), default=0)
        self.large = elements >= LARGE or estimated_seconds(kind) >= SLOW
        self.form = form if form is not None else len(kind.ins) if plain and len(kind.ins) in (1, 2) and not self.large else 0
        self.specs: tuple[Spec, ...] = tuple(kind.ins[i] for i in kind.tensor_operands)
        self.results = kind.outs
        self.short = (*self.specs, *self.results)
        self.limits = tuple([(self.encoding.at(i), *rest) for i, *rest in limits_of(kind)]) if not kind.row.loads else ()
        self.ops = {kind.row.name: 1}
        self.ways = {way: 1} if way else {}
        self.needs: tuple[int, int, bool] | None = None  # set by HostMemory at its first use
        self.compared = tuple(zip(self.tensor_positions, self.specs))  # operands that are compared one by one

    @property
    def title(self) -> str:
        """Its name in messages."""
        return str(self.kind)

    def check(self, made: Any) -> None:
        """Raise if a kernel's results do not have its kind's shapes and dtypes: a faulty client may send settings that the
        kernel and the shape rule interpret differently, and later kernels rely on the rule."""
        for spec, array in zip(self.results, (made,) if self.result_count == 1 else made):
            if tuple(array.shape) != spec.shape:
                raise ProtocolError(f"{self.kind}: expected a result of shape {spec.shape}, got {tuple(array.shape)}")
            if (dtype := dtype_name(array.dtype)) != spec.dtype.name and spec.dtype is not bfloat16:
                raise ProtocolError(f"{self.kind}: expected a result of {spec.dtype.name}, got {dtype}")

    def stats(self) -> dict[str, float]:
        return {}


@lru_cache(64)
def dtype_name(dtype: Any) -> str:
    """The name of NumPy's or PyTorch's dtype."""
    return str(dtype).removeprefix("torch.")


Limit = tuple[int, type, float | None, float | None]


def limits_of(kind: Kind) -> Iterator[Limit]:
    """For each number: its operand index, its type and, if it decides the shape of a result, its least and largest valid
    value. A number of another type would give a result of another dtype."""
    ranges: dict[int, tuple[Any, Any]] = (
        {i: (low, high) for i, low, high in kind.row.limits(kind)} if kind.row.limits is not None else {}
    )
    for i, of in enumerate(kind.ins):
        if isinstance(of, type):
            yield i, of, *ranges.get(i, (None, None))


def _limits_of_call(program: Program, encoding: Form) -> Iterator[Limit]:
    """The same for a call, by position in the call. Raises if a number that is not a hole is invalid."""
    for ins in program.instructions:
        for i, of, low, high in limits_of(ins.kind):
            number: Any = ins.operands[i]
            found = type(number)
            if isinstance(number, Hole):
                yield encoding.given.start + number.index, of, low, high
            elif found is not of or low is not None and high is not None and not low <= number <= high:
                raise ProtocolError(f"{ins.kind} with the number {number}: expected {expected(of, low, high)}")


def expected(of: type, low: float | None, high: float | None) -> str:
    return f"{of.__name__}" if low is None else f"{of.__name__} from {low} to {high}"


def _silent(line: str, seconds: float | None = None) -> None:
    """The default of `say`."""


def _unseen(stage: str, program: Program) -> None:
    """The default of `show`."""


def growth_of(ready: Any) -> int:
    """Bytes of the results of an instruction, less those of the inputs that end with it."""
    specs = dict(zip(ready.tensor_positions, ready.specs))
    ends = sum(max(spec.nbytes, LEAST) for i in ready.dies if isinstance(spec := specs.get(i), Spec))
    return max(0, sum(max(spec.nbytes, LEAST) for spec in ready.results if isinstance(spec, Spec)) - ends)


def pauses(program: Program) -> frozenset[int]:
    """The pause points of a long program: one for each PAUSE estimated seconds."""
    found, since = set(), 0.0
    for n, ins in enumerate(program.instructions):
        if since >= PAUSE:
            found.add(n)
            since = 0.0
        since += ins.seconds
    return frozenset(found)


class Turns(Protocol):
    """The turns of clients on this worker, which may preempt a program; `let_in` executes others' questions within one."""

    def turn_is_over(self) -> bool: ...
    def shared(self) -> bool: ...
    def let_in(self) -> None: ...


class Executable:
    """A program on this worker: its straight-line function, and, once it is hot, a faster form if the engine has one. `compile`
    requests a compiled form; `say` is called with lines about it, `warn` with the reason why the user's `compile: true` is not
    obeyed, `show` with the result of each pass; `stages` keeps these. `plain` is the reason why there must be no faster form.
    `source` is its origin: a trace, a unit, or a segment of a trace between collectives. `constants` is the maximum of bytes of
    its constants, which no quota counts."""

    source = "trace"

    needs: tuple[int, int, bool] | None = None  # set by HostMemory at its first use
    compared: tuple = ()  # as of Ready: its operands are compared all at once
    dropped = False  # whether its client has left or dropped it

    def __init__(
        self, program: Program, kinds: dict[int, Ready], engine: Engine, compile: bool = False,
        say: Callable[..., None] = _silent, warn: Callable[[str], None] = _silent, plain: str = "",
        show: Callable[[str, Program], None] = _unseen, turns: Turns | None = None, ticks: Ticks | None = None,
        constants: int = 0,
    ) -> None:  # fmt: skip
        self.program, self.kinds, self.engine, self.say, self.warn, self.show = program, kinds, engine, say, warn, show
        self.number, self.turns, self.ticks = program.number, turns, ticks or Ticks()
        self.pauses: frozenset[int] = frozenset()  # its pause points
        self.slices = False  # whether it takes more than a turn: then it is preempted even for clients that are yet to connect
        self.compile = compile or program.compile
        encoding = self.encoding = Form.of_call(len(program.results), program.inputs, program.holes)
        self.result_count, self.inputs, self.tensor_positions = encoding.result_count, program.inputs, encoding.tensor_positions
        self.dies = tuple(encoding.at(i) for i in program.dying)
        self.executed = without_unused(program)
        self.ops = Counter(ins.op.name for ins in self.executed.instructions)
        self.ways: Counter[str] = Counter()
        for ins in self.executed.instructions:
            self.ways.update(kinds[ins.number].ways)
        self.length = len(program.instructions)
        # As a large kernel, before which the clock is read; one of a few small kernels is not, as one of these is not.
        self.large = self.compile or self.length > FEW or self.seconds >= SLOW or any(kinds[n].large for n in program.kinds)
        self.title = f"a trace of {self.length} ops"
        held = program.specs
        self.specs = tuple(held.get(i) for i in range(1, 1 + self.inputs))  # None: unused
        self.results = tuple(held[r] for r in program.results)
        used = [(i, spec) for i, spec in zip(encoding.tensor_positions, self.specs) if spec is not None]
        self.checked = pick([i for i, _ in used]), tuple([spec for _, spec in used])  # its operands, and their specs
        self.ends = pick(self.dies)  # the inputs that end with a call
        self.limits = tuple(dict.fromkeys(_limits_of_call(program, encoding)))
        self.stages: dict[str, Program] = {}
        self.function = self._function(constants)
        self.calls = self.plain_calls = 0  # all, and those of the straight-line function
        self.failed: str = ""  # why the faster form failed, if one was tried
        self.faster: Any = engine.faster(self) if not plain else None
        becomes = f"{type(self.faster).__name__} when it is hot" if self.faster is not None else "no faster form is requested"
        self.tell(f"one function of {', '.join(f'{name} {n}' for name, n in self.ops.most_common(6))}; {becomes}")
        if program.compile and self.faster is None:
            self.give_up(plain or f"the {engine.name} engine compiles nothing")

    def _function(self, constants: int) -> Callable[..., Any]:
        engine, kinds = self.engine, self.kinds
        over = {n: kernel for n, r in kinds.items() if (kernel := engine.over(r.kind)) is not None}
        self.stage("as received", self.program)
        program = self.stage("without unused ops", self.executed)
        program = self.stage("updates fused", fuse_updates(program, lambda kind: engine.update(kind) is not None))
        if engine.device == "cpu":  # elsewhere the recorded form does so
            folded = fold_constants(program, self._constant, constants)
            program = self.stage("constants folded", without_unused(folded))  # of some values only the shape was used
            if engine.small_runs is not None:
                program = self.stage("small runs joined", small_runs(program, engine.small_runs))
            program = self.stage("pairs fused", fuse_pairs(program, engine.half))
            program = self.stage("lists fused", fuse_lists(program, engine.alike))
        program = self.stage("written in place", write_in_place(program, over))
        self.lowered = program  # the program of the straight-line function
        self.kernels = KernelTable({n: r.watched for n, r in kinds.items()}, over, engine.many, engine.small_runs)
        self.is_runs = all(ins.in_order for ins in program.instructions)
        self.steps = sum([len(ins.parts) for ins in program.instructions if ins.in_order])
        if self.turns is not None and engine.device == "cpu":  # on other devices kernels are only launched here
            self.pauses = pauses(program)
            self.slices = sum(ins.seconds for ins in program.instructions) > SLICE
        return straight_line(program, self.kernels)

    def _constant(self, ins: Instruction, known: dict[int, Any]) -> tuple[Any, ...] | None:
        """The results of an instruction that are the same in every call. It uses only the shape of unknown operands."""
        ready, load = self.kinds[ins.number], self.engine.load
        operands = [
            o if type(spec) is not Spec else known[o] if o in known else load(memoryview(bytes(spec.nbytes)), spec, True)
            for o, spec in zip(ins.operands, ins.kind.ins)
        ]
        try:
            with self.engine.threads or nullcontext():
                made = ready.run(*operands)
            ready.check(made)
        except Exception:  # a kernel may raise anything: each call of the program raises it, too, and marks its results
            return None
        return tuple(made) if len(ins.results) > 1 else (made,)

    def _pausing(self, ticked: Ticked | None = None) -> Callable[..., Any]:
        points = PausePoints(self.turns.turn_is_over, self.pauses) if self.turns and self.pauses else None
        return straight_line(self.lowered, self.kernels, pauses=points, ticked=ticked)

    @cached_property
    def pausing(self) -> Callable[..., Any]:
        """The straight-line function with pause points."""
        return self._pausing()

    @cached_property
    def timed(self) -> Callable[..., Any]:
        """The straight-line function with pause points, and with the end of each instruction told."""
        return self._pausing(Ticked.of(self.ticks, self.program))

    def is_form(self, code: CodeType) -> bool:
        """Whether this is the code of one of its straight-line functions."""
        made = (self.__dict__.get(name) for name in ("function", "pausing", "timed"))
        return any(form is not None and code is form.__code__ for form in made)

    @cached_property
    def constant_bytes(self) -> int:
        """Bytes of its constants."""
        specs = self.program.specs
        return sum(max(specs[v].nbytes, LEAST) for v in self.lowered.constants)

    @cached_property
    def is_plain(self) -> bool:
        """Whether none of its products has a precision of its own."""
        return not any(ins.kind.precision for ins in self.program.instructions)

    @cached_property
    def seconds(self) -> float:
        """The estimated time of a call on one core."""
        return sum([ins.seconds for ins in self.program.instructions])

    @cached_property
    def growth(self) -> int:
        """Bytes that a call adds. It is asked for at each call, and has hundreds of tensors."""
        return growth_of(self)

    @cached_property
    def peak(self) -> int:
        """Most bytes that a call needs besides its inputs."""
        return peak(self.program)

    def stage(self, name: str, program: Program) -> Program:
        """Note the result of a pass, if it changed the program."""
        if all(program != known for known in self.stages.values()):
            self.stages[name] = program
            self.show(name, program)
        return program

    def run(self, table: dict[int, Any], ins: tuple) -> None:
        """A call: inputs from the table, results into it."""
        self.calls += 1
        if self.calls == 2:
            self._bind_checked()
        if self.faster is not None and self.faster.run(table, ins):
            return
        self.plain_calls += 1
        encoding = self.encoding
        arrays = [table[i] for i in ins[encoding.inputs]]
        for i in self.dies:
            del table[ins[i]]
        given, timed = ins[encoding.given], self.ticks.note is not None
        if self.pauses and (timed or self.slices or self.turns is not None and self.turns.shared()):
            self._advance((self.timed if timed else self.pausing)(arrays, *given), table, ins)
        else:
            table.update(by_result(ins, (self.timed if timed else self.function)(arrays, *given)))

    def _bind_checked(self) -> None:
        """Call the kernels whose first results were checked without that check: as each kernel evicts the caches, one more
        Python call before it takes about a microsecond."""
        checked = {n: r.watched for n, r in self.kinds.items()}
        names = self.function.__globals__
        names.update({name: kernel for n, kernel in checked.items() if (name := kernel_name(n)) in names})
        self.kernels.kernels.update(checked)

    def _advance(self, program: Generator[None, None, tuple[Any, ...]], table: dict[int, Any], ins: tuple) -> None:
        """Run to the end, or until other clients wait: its intermediate values are then held by the generator alone."""
        try:
            next(program)
        except StopIteration as end:
            table.update(by_result(ins, end.value))
            return
        raise Preempted(ins, partial(self._advance, program, table, ins))

    def give_up(self, why: str) -> None:
        """Give up the faster form; the statistics show the reason."""
        self.faster, self.failed = None, why
        self.tell(f"left to its straight-line function: {why}", 0.0)
        if self.program.compile:
            self.warn(f"compile: true is not obeyed: {why}")

    def tell(self, what: str, seconds: float | None = None) -> None:
        """Report a line about this program, with the seconds of its compilation, if any."""
        text = f"{self.title} (number {self.number}): {what}"
        self.say(text) if seconds is None else self.say(text, seconds, self.program.line)

    def stats(self) -> dict[str, float]:
        counts = ("units", "unit_calls") if self.source == "unit" else ("traces", "calls")
        own = {counts[0]: 1, counts[1]: self.calls, "launches_saved": self.calls * max(0, self.length - 1)}
        if self.steps:
            own["small_run_ops"] = self.plain_calls * self.steps
        if self.failed:
            own["fallbacks"] = 1
            own[f"fallback: {self.failed}"] = 1
        return {**own, **(self.faster.stats() if self.faster is not None else {})}
