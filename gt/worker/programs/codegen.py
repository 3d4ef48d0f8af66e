"""Generates one Python function from a program: a line for each instruction over local variables, `r` and the number of a
value. A table gives the function to call for an instruction: an engine's kernels, or NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from gt.ops import Kind
from gt.program import Hole, Instruction, Program
from gt.spec import Spec
from gt.worker.programs.ticks import Ticked

SENT = 0  # in the place of a value that a collective without results would make: it, too, must have ended with the program
NONE: Mapping[int, Any] = MappingProxyType({})


class Side(Protocol):
    """Runs instructions that are marked for a second stream: their results may be used only after `join`."""

    def run(self, kernel: Callable[..., Any], *operands: Any) -> Any: ...
    def join(self) -> None: ...


class KernelTable:
    """Kernels by number of the kind, and kernels for instructions that passes changed: `over` has the in-place kernels, which
    overwrite the first operand, `fused(kind)` returns one that takes the operands of many instructions at once and returns a
    list of their results, `runs.in_order(instruction)` one that runs its parts one after another: it takes its
    `operands_in_order`, and returns the results that outlive it."""

    def __init__(
        self, kernels: dict[int, Callable], over: Mapping[int, Callable] = NONE,
        fused: Callable[[Kind], Callable | None] | None = None, runs: Any = None,
    ) -> None:  # fmt: skip
        self.kernels, self.over, self.fused, self.runs = kernels, over, fused, runs

    def kernel(self, ins: Instruction) -> tuple[str, Any]:
        """The name and the kernel of an instruction."""
        name = kernel_name(ins.number)
        if ins.in_order:
            assert self.runs is not None, "a program with runs needs their kernels"
            return f"run{ins.results[-1]}", self.runs.in_order(ins)
        if ins.parts:
            assert self.fused is not None, "a program with fused updates needs fused kernels"
            return f"all_{name}", self.fused(ins.kind)
        return (f"o{name}", self.over[ins.number]) if ins.in_place else (name, self.kernels[ins.number])

    def begin(self, holes: int) -> list[str]:
        """The function's first lines."""
        return []

    def globals(self) -> dict[str, Any]:
        """The globals that these lines and results use."""
        return {}

    def number(self, value: Any) -> Any:
        """A number of the program as kernels expect it."""
        return value

    def operands(self, ins: Instruction, names: list[str]) -> list[str]:
        return names

    def result(self, name: str) -> str:
        return name


def kernel_name(number: int) -> str:
    """The global of a program that has the kernel of a kind."""
    return f"k{number}".replace("-", "_")  # the dispatcher's own kinds have negative numbers


def outlive(ins: Instruction) -> list[int]:
    """The results of parts in order that are used outside."""
    return [r for r in ins.results if r not in ins.frees]


def operands_in_order(ins: Instruction) -> tuple[list[int], list[int]]:
    """The values from outside that parts in order use, and the indices of their holes, in the order of their first use."""
    return [v for v in dict.fromkeys(ins.values) if v not in ins.results], list(dict.fromkeys(ins.holes))


def straight_line(
    program: Program,
    table: KernelTable,
    flat: bool = False,
    side: Side | None = None,
    pauses: PausePoints | None = None,
    ticked: Ticked | None = None,
    marks: Mapping[int, Callable[[], None]] = NONE,
) -> Callable[..., Any]:
    """`f(inputs, *numbers) -> results`, or with `flat` `f(*inputs, *numbers)`; kernels, constants and numbers are bound as
    globals. The list of inputs is emptied, so that each array is freed after its last use. With `pauses` it is a generator
    that yields at pause points, and returns the results; with `ticked` it tells the end of each instruction; `marks` are called
    behind these of its instructions."""
    writer = _Writer(program, table, flat, side, pauses, ticked, marks)
    exec(compile("\n".join(writer.lines), f"<program {program.number}>", "exec"), writer.names)
    return writer.names["program"]


class PausePoints(NamedTuple):
    """Where a program can be preempted: before these of its instructions, if `over()` returns that other clients wait."""

    over: Callable[[], bool]
    before: frozenset[int]


class _Writer:
    def __init__(
        self, program: Program, table: KernelTable, flat: bool, side: Side | None, pauses: PausePoints | None,
        ticked: Ticked | None, marks: Mapping[int, Callable[[], None]],
    ) -> None:  # fmt: skip
        self.table, self.side = table, side
        self.names: dict[str, Any] = {f"r{v}": value for v, value in program.constants.items()} | table.globals()
        if side is not None:
            self.names |= {"side_stream": side.run, "join": side.join}
        self.numbers = 0
        self.apart: set[int] = set()  # values of the second stream, which need a join before their use
        inputs = [f"r{i + 1}" for i in range(program.inputs)]
        given = [*(inputs if flat else ["inputs"]), *(f"h{i}" for i in range(program.holes))]
        self.lines = [f"def program({', '.join(given)}):"]
        if inputs and not flat:
            self.lines += [f"    {', '.join(inputs)}, = inputs", "    del inputs[:]"]
        self.lines += [f"    {line}" for line in table.begin(program.holes)]
        if pauses is not None:
            self.names["over"] = pauses.over
        if ticked is not None:
            self.names["tick"] = ticked.ticks.tick
        starts = self.names["starts"] = list[int]()  # the first line of each instruction
        for n, ins in enumerate(program.instructions):
            starts.append(len(self.lines) + 1)
            if pauses is not None and n in pauses.before:
                self.lines.append("    if over(): yield")
            self._write(ins)
            if n in marks:
                self.names[f"m{n}"] = marks[n]
                self.lines.append(f"    m{n}()")
            if ended := [v for v in ins.frees if not ins.in_order or v not in ins.results]:
                self.lines.append(f"    del {', '.join(f'r{v}' for v in ended)}")
            if ticked is not None:
                self.names[f"t{n}"] = ticked.entries(ins)
                self.lines.append(f"    tick(t{n})")
        self._join(self.apart)
        self.lines.append(f"    return ({''.join(table.result(f'r{r}') + ', ' for r in program.results)})")

    def _write(self, ins: Instruction) -> None:
        name, kernel = self.table.kernel(ins)
        self.names[name] = kernel
        results = ", ".join(f"r{r}" for r in ins.results)
        made = f"{results} = " if results else ""  # a collective that only sends has none
        if ins.in_order:
            self._join(ins.reads)
            results = ", ".join(f"r{v}" for v in outlive(ins))
            made = f"{results} = " if results else ""
            values, holes = operands_in_order(ins)
            self.lines.append(f"    {made}{name}({', '.join([*(f'r{v}' for v in values), *(f'h{h}' for h in holes)])})")
        elif ins.parts:  # one call for many instructions
            self._join(ins.reads)
            results = ", ".join(f"({''.join(f'r{r}, ' for r in part.results)})" for part in ins.parts)
            calls = ", ".join(f"({', '.join(self._operands(part))},)" for part in ins.parts)
            self.lines.append(f"    {results}, = {name}([{calls}])")
        elif self.side is not None and ins.side:
            self.apart.update(ins.results or (SENT,))
            self.lines.append(f"    {made}side_stream({name}, {', '.join(self._operands(ins))})")
        else:
            self._join(ins.reads)
            operands = self.table.operands(ins, self._operands(ins))
            self.lines.append(f"    {made}{name}({', '.join(operands)})")

    def _join(self, used: frozenset[int] | set[int]) -> None:
        if self.apart & used:
            self.lines.append("    join()")
            self.apart = set()

    def _operands(self, ins: Instruction) -> list[str]:
        found = []
        for operand, spec in zip(ins.operands, ins.kind.ins):
            if type(spec) is Spec:
                found.append(f"r{operand}")
            elif type(operand) is Hole:
                found.append(f"h{operand.index}")
            else:
                self.numbers += 1
                self.names[f"c{self.numbers}"] = self.table.number(operand)
                found.append(f"c{self.numbers}")
        return found
