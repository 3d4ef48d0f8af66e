"""The numbers of a graph's calls, such as an optimizer's step: tensors that the graph reads, filled before each call."""

from __future__ import annotations

from typing import Any

import torch

from gt.program.code import bits, same_bits

TYPES = (torch.float64, float), (torch.int64, int)
SLOTS = 4  # calls whose numbers may be on their way to the device: no more of a graph are in flight
HALF = SLOTS // 2
FEW = 4  # numbers that are filled in one by one: copies from the host have one queue, in which clients wait for one another


class Rises:
    """By how much each whole number rises from call to call, where that is the same each time, as with an optimizer's step; 0
    where it is not."""

    def __init__(self) -> None:
        self.last: tuple | None = None
        self.each: tuple[int, ...] | None = None  # None before the second call

    def see(self, numbers: tuple) -> None:
        if self.last is not None:
            now = [n - m if type(n) is int and type(m) is int else 0 for n, m in zip(numbers, self.last)]
            self.each = tuple(now) if self.each is None else tuple([n if n == m else 0 for n, m in zip(now, self.each)])
        self.last = numbers


class GraphNumbers:
    """Views of one vector for each type of number. Many are copied from pinned memory: a copy from any other waits until the
    device has done all that the client's stream was given before, and the worker, which others wait for, with it. Whole numbers
    that rise by the same in each call (`rises`) are counted up by the graph, as to fill in one takes the worker as long as the
    launch of a small graph."""

    def __init__(self, numbers: tuple, at: torch.device, rises: tuple[int, ...] | None = None) -> None:
        self.last: tuple | None = None  # the numbers on the device
        self.rises = rises if rises is not None and any(rises) else None
        self.added = torch.tensor(self.rises or (), dtype=torch.int64, device=at)
        self.at, self.slot = at, 0
        self.vectors = [torch.zeros(len(numbers), dtype=dtype, device=at) for dtype, _ in TYPES]
        self.holes = [self.vectors[0 if isinstance(n, float) else 1][i] for i, n in enumerate(numbers)]
        pinned = at.type == "cuda"
        self.staged = [torch.zeros(SLOTS, len(numbers), dtype=dtype, pin_memory=pinned) for dtype, _ in TYPES]
        self.copied: list[Any] = [None, None]  # an event behind the copies from each half of the slots

    def give(self, numbers: tuple) -> None:
        """Fill the tensors, on the stream at hand."""
        last = self.last
        if last is not None and same_bits(numbers, last):
            return
        slot, half = self.slot, self.slot // HALF
        if slot % HALF == 0 and self.copied[half] is not None:
            self.copied[half].synchronize()
        changed = [i for i, n in enumerate(numbers) if last is None or bits(n) != bits(last[i])]
        if last is not None and len(changed) <= FEW:
            for i in changed:
                self.holes[i].fill_(numbers[i])
        else:
            self._copy(numbers, slot)
        if slot % HALF == HALF - 1 and self.at.type == "cuda":
            self.copied[half] = torch.cuda.Event()
            self.copied[half].record(torch.cuda.current_stream(self.at))
        self.last, self.slot = numbers, (slot + 1) % SLOTS

    def rise(self) -> None:
        """Add the steps of the whole numbers; recorded at the end of the graph."""
        if self.rises is not None:
            self.vectors[1].add_(self.added)

    def advance(self) -> None:
        """The graph was launched, which adds them."""
        if self.rises is not None and self.last is not None:
            self.last = tuple([n + more if more else n for n, more in zip(self.last, self.rises)])

    def _copy(self, numbers: tuple, slot: int) -> None:
        for (dtype, number_type), vector, staged in zip(TYPES, self.vectors, self.staged):
            if any(isinstance(n, number_type) for n in numbers):
                given = [number_type(n) if isinstance(n, number_type) else 0 for n in numbers]
                staged[slot].copy_(torch.tensor(given, dtype=dtype))
                vector.copy_(staged[slot], non_blocking=True)
