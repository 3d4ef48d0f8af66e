"""A trace as one Python function: a line for each instruction over local variables, `r` and the number of a register."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from gt.transport.messages import FREE, TraceDef
from gt.worker.programs.updates import together

if TYPE_CHECKING:
    from gt.worker.programs.compile import Ready

NONE: Mapping[int, Any] = MappingProxyType({})


class SideStreamLike(Protocol):
    """Instructions, by their index, that run beside the others: nobody may use their results before `join`."""

    indices: set[int]

    def run(self, kernel: Callable[..., Any], *operands: Any) -> Any: ...
    def join(self) -> None: ...


def straight_line(
    trace: TraceDef, kernels: Mapping[int, Callable], kinds: dict[int, Ready], flat: bool = False, *,
    gather: Mapping[int, Callable] = NONE, over: Mapping[int, Callable] = NONE, known: Mapping[int, Any] = NONE,
    side_stream: SideStreamLike | None = None,
) -> Callable[..., tuple]:  # fmt: skip
    """`f(inputs, *numbers) -> results`, or with `flat` `f(*inputs, *numbers)`; kernels and numbers are bound as globals. The
    list of inputs is emptied, so that each array ends with its last use. Kinds in `gather` have a kernel that takes the
    operands of many instructions at once and gives a list of their results; those in `over` one that writes over its first
    operand. Registers in `known` have their value already."""
    return _Writer(trace, kernels, kinds, flat, gather, over, known, side_stream).function()


class _Writer:
    def __init__(
        self, trace: TraceDef, kernels: Mapping[int, Callable], kinds: dict[int, Ready], flat: bool,
        gather: Mapping[int, Callable], over: Mapping[int, Callable], known: Mapping[int, Any],
        side_stream: SideStreamLike | None,
    ) -> None:  # fmt: skip
        self.trace, self.kernels, self.kinds, self.gather, self.over, self.side_stream = (
            trace,
            kernels,
            kinds,
            gather,
            over,
            side_stream,
        )
        self.holes = {place: f"h{i}" for i, places in enumerate(trace.holes) for place in places}
        self.names: dict[str, Any] = {f"r{r}": value for r, value in known.items()}
        if side_stream is not None:
            self.names |= {"side_stream": side_stream.run, "join": side_stream.join}
        self.apart: set[int] = set()  # registers that may be used only after a join
        self.ending = overwritten(trace.body, kinds, over)
        self.groups, late = together(trace.body, kinds, gather)
        self.waiting = {i for places in self.groups.values() for i in places}
        self.calls: dict[int, tuple[str, str]] = {}  # of instructions that wait for others: results and operands
        registers = [f"r{i + 1}" for i in range(trace.inputs)]
        given = [*(registers if flat else ["inputs"]), *(f"h{i}" for i in range(len(trace.holes)))]
        self.lines = [f"def program({', '.join(given)}):"]
        if registers and not flat:
            self.lines += [f"    {', '.join(registers)}, = inputs", "    del inputs[:]"]
        for index, ins in enumerate(trace.body):
            if ins[0] == FREE:
                if index not in late and ins[1] not in known:
                    self.lines.append(f"    del r{ins[1]}")
            elif ins[1] not in known:
                self._write(index, ins)
        self._join(set(self.apart))
        self.lines.append(f"    return ({''.join(f'r{r}, ' for r in trace.outs)})")

    def function(self) -> Callable[..., tuple]:
        exec(compile("\n".join(self.lines), f"<trace {self.trace.number}>", "exec"), self.names)
        return self.names["program"]

    def _write(self, index: int, ins: tuple) -> None:
        ready = self.kinds[int(ins[0])]
        form = "o" if index in self.ending else "k"
        kernel = f"{form}{ins[0]}".replace("-", "_")  # the dispatcher's own kinds have numbers below zero
        self.names[kernel] = self.over[int(ins[0])] if index in self.ending else self.kernels[int(ins[0])]
        results = ", ".join(f"r{r}" for r in ins[1 : 1 + ready.outs])
        operands = ", ".join(self._operands(index, ins, ready))
        if index in self.waiting:
            self.calls[index] = results, operands
            if index in self.groups:
                self._group(kernel, self.groups[index])
        elif self.side_stream is not None and index in self.side_stream.indices:
            self.apart.update(ins[1 : 1 + ready.outs])
            self.lines.append(f"    {results} = side_stream({kernel}, {operands})")
        else:
            self._join(values_read(ins, ready))
            self.lines.append(f"    {results} = {kernel}({operands})")

    def _group(self, kernel: str, places: list[int]) -> None:
        """One call for many instructions, where the last of them stands."""
        body = self.trace.body
        for i in places:
            self._join(values_read(body[i], self.kinds[int(body[i][0])]))
        self.names[f"all_{kernel}"] = self.gather[int(body[places[-1]][0])]
        left = ", ".join(f"({self.calls[i][0]},)" for i in places)
        self.lines.append(f"    {left}, = all_{kernel}([{', '.join(f'({self.calls[i][1]},)' for i in places)}])")

    def _join(self, used: set[int]) -> None:
        if self.apart & used:
            self.lines.append("    join()")
            self.apart.clear()

    def _operands(self, index: int, ins: tuple, ready: Ready) -> list[str]:
        found = []
        for i in range(1 + ready.outs, len(ins)):
            if i in ready.tensors:
                found.append(f"r{ins[i]}")
            elif (index, i) in self.holes:
                found.append(self.holes[index, i])
            else:
                self.names[f"c{index}_{i}"] = ins[i]
                found.append(f"c{index}_{i}")
        return found


def values_read(ins: tuple, ready: Ready) -> set[int]:
    """The registers whose values an instruction uses; an op that creates looks at a tensor's shape only."""
    return set() if ready.kind.row.family == "create" else {int(ins[i]) for i in ready.tensors}


def overwritten(body: list, kinds: dict[int, Ready], numbers: Mapping[int, Any]) -> set[int]:
    """Indices of instructions of these kinds that may write over their first operand: it was made here as new memory, nothing
    but kinds that make new memory has seen it, so that there is no view of it, and it ends there."""
    made: dict[int, int] = {}  # registers that are new memory, by the instruction that made them
    last: dict[int, list[int]] = {}  # registers, and where they are used
    freed = {ins[1] for ins in body if ins[0] == FREE}
    for index, ins in enumerate(body):
        if ins[0] == FREE:
            continue
        ready = kinds[int(ins[0])]
        for i in ready.tensors:
            if ins[0] in numbers:
                last.setdefault(ins[i], []).append(index)
            else:
                made.pop(ins[i], None)
        if ins[0] in numbers:
            made[ins[1]] = index
    return {places[-1] for register, places in last.items()
            if register in made and register in freed and body[places[-1]][2] == register
            and places.count(places[-1]) == 1}  # fmt: skip
