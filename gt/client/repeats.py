"""A cache of the tracer's results for batches that ended with a read, by the kinds of their instructions: a loop that reads in
every step sends the same few instructions each time, and finding their traces takes longer than sending them."""

from __future__ import annotations

from collections.abc import Callable

from gt.client.early import LEAST, Early
from gt.client.traces import Trace, TraceForm
from gt.program.code import Encoded, first_result, frees_of, number_of

MARK = -1  # the pseudo-instruction (MARK,): a natural boundary, never sent
MOST = 64  # most batches that are remembered
LONGEST = 512  # most instructions of one
Part = tuple[int, int, TraceForm | None]  # instructions from one index to another, and the form of the trace that they are


class Repeats:
    """By the numbers of a batch's instructions, its parts. They hold where no trace is in progress at its beginning, and none
    was at its end, until the traces change."""

    def __init__(self, early: Early) -> None:
        self.early = early
        self.known: dict[tuple[int, ...], tuple[Part, ...]] = {}
        self.lengths: set[int] = set()  # of the batches known: others are told by their length alone

    def clear(self) -> None:
        self.known.clear()
        self.lengths.clear()

    def note(self, batch: list[Encoded], parts: list[Part]) -> None:
        """Remember the parts of a batch and the mark after it, unless one is a trace that may be called early: its guess learns
        from each call."""
        if len(batch) > LONGEST or any(form is not None and form.trace.size >= LEAST for _, _, form in parts):
            return
        if len(self.known) >= MOST:
            self.clear()
        tokens = tuple(map(number_of, batch))
        self.known[tokens] = tuple(_unmarked(tokens, parts))
        self.lengths.add(len(batch))

    def fold(self, batch: list[Encoded], count: Callable[[Trace], None]) -> list[Encoded] | None:
        """The instructions to send for a batch; None for an unknown batch. `count` is called with each
        trace that is called."""
        if len(batch) not in self.lengths:
            return None
        parts = self.known.get(tuple(map(number_of, batch)))
        if parts is None:
            return None
        out: list[Encoded] = []
        called = []
        for start, end, form in parts:
            if form is None:
                out += batch[start:end]
                continue
            code = batch[start:end]
            if end > len(batch):
                code.append((MARK,))
            found = form.call(code)
            if found is None:
                return None
            out.append(found[0])
            out += frees_of(found[1])
            called.append((form.trace, first_result(batch[start])))
        for trace, first in called:
            count(trace)
            self.early.called(trace, int(first))
        return out


def _unmarked(tokens: tuple[int, ...], parts: list[Part]) -> list[Part]:
    """The parts without marks, which are not sent; adjacent parts that are sent unchanged are joined."""
    found: list[Part] = []
    for start, end, form in parts:
        if form is not None:
            found.append((start, end, form))
            continue
        for at in range(start, min(end, len(tokens))):
            if tokens[at] == MARK:
                continue
            if found and found[-1][1] == at and found[-1][2] is None:
                found[-1] = (found[-1][0], at + 1, None)
            else:
                found.append((at, at + 1, None))
    return found
