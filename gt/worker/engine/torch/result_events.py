"""Events inside a CUDA graph, behind the instructions that make its small results: a loss is read while the device executes the
backward pass and the updates behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gt.program import Program

SMALL = 64  # most bytes of a result that has an event: a loss, or a few of them
MOST = 8  # results of a graph that have one: an event takes the device about a microsecond
BEHIND = 32  # least instructions behind such a result: a shorter rest is waited for

EXTERNAL = "external" in inspect.signature(torch.cuda.Event.__new__).parameters  # since PyTorch 2.8


def read_early(program: Program) -> dict[int, int]:
    """By index of a small result, the instruction that makes it, where many are behind that. Numbers go before vectors, and
    losses before counters, which are whole numbers."""
    index = {value: j for j, value in enumerate(program.results)}
    found = [
        (not spec.dtype.is_floating_point, spec.nbytes, n, index[value])
        for n, ins in enumerate(program.instructions[:-BEHIND])
        for value, spec in zip(ins.results, ins.made)
        if value in index and spec.nbytes <= SMALL and not (ins.op.updates or ins.in_place)
    ]
    return {j: n for _, _, n, j in sorted(found)[:MOST]}


class ResultEvents:
    """The events of a graph's captures. A capture has its own, which each replay records anew."""

    def __init__(self) -> None:
        self.recorded: dict[int, Any] | None = None  # by result, the events of the capture at hand

    def marks(self, program: Program, side: Any) -> dict[int, Callable[[], None]]:
        """By instruction of a program, the function to call behind it; `side` is the second stream."""
        made: dict[int, list[int]] = {}  # by instruction, results
        for j, n in read_early(program).items() if EXTERNAL else ():
            made.setdefault(n, []).append(j)
        body = program.instructions
        return {n: partial(self._mark, js, side if body[n].side and not body[n].parts else None) for n, js in made.items()}

    def _mark(self, results: list[int], stream: Any) -> None:
        if self.recorded is not None:  # else the function runs without a capture
            event = torch.cuda.Event(external=True)
            event.record(stream)
            self.recorded |= dict.fromkeys(results, event)

    def begin(self) -> None:
        """A capture begins."""
        self.recorded = {}

    def end(self, made: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor | None, Any]]:
        """The function has returned: the events, and the results behind which they are. None for one that lies in an input,
        which may be updated at the end."""
        found, self.recorded = self.recorded or {}, None
        taken = {x.untyped_storage().data_ptr() for x in inputs} if found else set()
        return [(made[j] if made[j].untyped_storage().data_ptr() not in taken else None, event) for j, event in found.items()]
