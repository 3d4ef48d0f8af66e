"""How many threads PyTorch's kernels take on a CPU. A kernel of some microseconds gains little by a second thread and pays for
it: threads wait for one another, spin in between, and keep their cores from the client that writes the next instructions. So
a run of instructions takes one thread, and within it each kernel that is long enough takes all there are. Which do is told
from their kinds alone, so that a kernel rounds alike in every run, inside traces and outside."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gt.ops import Kind
from gt.ops.estimate import estimated_seconds, parallel_seconds
from gt.spec import Spec

# Estimated seconds on one core from which a kernel takes all threads. The estimate is of a core with AVX-512: a Neoverse N1
# takes 3.7 times as long for products, and longer for functions such as gelu. (There, ResNet-18's step takes 24.8 ms so and
# 32.6 with 8e-5, a small language model's 9.9 and 11.5.)
LONG = 1.5e-5 if platform.machine() in ("aarch64", "arm64") else 8e-5
LONGEST = 2e-3  # the same, from which other clients' short runs are executed during a kernel
SPLIT = 1 << 15  # elements of a parameter from which PyTorch splits its update among threads
WAKE = 1 << 18  # the same where no kernel of the run has used the threads before: to wake them takes longer than the update
LARGEST = 1 << 19  # elements of the parameters of an update that takes milliseconds


class KernelThreads:
    """`with` it around a run of instructions."""

    __slots__ = ("total", "count", "awake", "second", "_depth")

    def __init__(self) -> None:
        self.total = torch.get_num_threads()
        self.count = 1  # that long kernels take, within a run
        self.awake = False  # whether a kernel of the run has taken them all
        self.second: Any = None  # a `SecondThread` of the worker
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self.count = torch.get_num_threads()
            if self.count > 1:
                torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            if self.count > 1:
                torch.set_num_threads(self.count)
            self.count, self.awake = 1, False

    def all(self, run: Callable[..., Any], *operands: Any) -> Any:
        """Call a kernel with all threads. Code that is compiled, in a thread of its own, has them anyway."""
        if self.count == 1 or torch.get_num_threads() == self.count:
            return run(*operands)
        self.awake = True
        torch.set_num_threads(self.count)
        try:
            return run(*operands)
        finally:
            torch.set_num_threads(1)

    def longest(self, run: Callable[..., Any], *operands: Any) -> Any:
        """The same for a kernel of milliseconds, during which a second thread executes short runs of other clients."""
        return self.all(run, *operands) if self.second is None else self.second.run(self.all, run, *operands)

    def shorter(self, run: Callable[..., Any], *operands: Any) -> Any:
        """The same for a kernel of tenths of a millisecond, during which it executes those of interactive clients alone."""
        return self.all(run, *operands) if self.second is None else self.second.run_shorter(self.all, run, *operands)

    def on_second_thread(self, work: Callable[[], None]) -> None:
        """Call `work`, which executes short kernels, on another thread than that of the other runs."""
        torch.set_num_threads(1)
        with torch.inference_mode():
            work()

    def for_updates(self, run: Callable[..., Any], calls: list[tuple[Any, ...]]) -> Any:
        """Call a kernel of many updates, with all threads where their parameters are large: an element's update is the same on
        each of them."""
        sizes = [min([t.numel() for t in call[:2]]) for call in calls]  # a gradient may have few of its parameter's rows
        if self.count > 1 and max(sizes) >= (SPLIT if self.awake else WAKE):
            return (self.longest if sum(sizes) >= LARGEST else self.shorter)(run, calls)
        return run(calls)

    def wrapped(self, kind: Kind, run: Callable[..., Any]) -> Callable[..., Any]:
        """The kernel of a kind, with as many threads as it takes."""
        if not is_long(kind):
            return run
        seconds = 0.0 if kind.precision else estimated_seconds(kind)  # PyTorch's setting of it holds for all threads
        return partial(self.longest if seconds >= LONGEST else self.shorter if seconds >= LONG else self.all, run)


def is_long(kind: Kind) -> bool:
    """Whether a kernel takes all threads."""
    first = kind.ins[0] if kind.ins else None
    return first.numel >= SPLIT if kind.row.updates and isinstance(first, Spec) else parallel_seconds(kind) >= LONG
