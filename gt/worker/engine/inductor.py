"""Traces through torch.compile: the whole trace as one torch.fx graph, compiled in the background while the straight-line
function goes on serving, and then put in its place; on CUDA, captured as a CUDA graph besides."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gt.worker.engine.graph import Graph, capturable

HOT = 3  # calls before a trace is worth compiling
_turns = threading.Lock()  # torch.fx patches functions while it traces, so one trace is compiled at a time


class Inductor:
    """A trace that is being compiled, or has been. `then`, where given, makes a yet faster form of the compiled function."""

    def __init__(self, program: Any, engine: Any) -> None:
        self.program, self.engine = program, engine
        self.calls = self.runs = 0
        self.seconds = 0.0
        self.compiled: Callable[..., Any] | None = None
        self.graph: Graph | None = None
        self.failure = ""
        self.thread: threading.Thread | None = None
        self.unchecked = bool(os.environ.get("GT_CHECK_COMPILED"))

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        self.calls += 1
        if self.failure:
            self.program.give_up(self.failure)
            return False
        if self.graph is not None:
            return self.graph.run(table, ins)
        program, outs = self.program, self.program.outs
        split = 1 + outs + program.inputs
        if self.compiled is None:
            if self.thread is None and self.calls > HOT:
                self._start([table[i] for i in ins[1 + outs : split]], ins[split:])
            return False
        arrays = [table[i] for i in ins[1 + outs : split]]
        numbers = [_tensor(n, self.engine.at) for n in ins[split:]]
        if self.unchecked and not self._checked(arrays, numbers, ins[split:]):
            return False
        made = self.compiled(*arrays, *numbers)
        for i in program.dies:
            del table[ins[i]]
        for i, array in enumerate(made):
            table[ins[1 + i]] = array
        self.runs += 1
        return True

    def _start(self, arrays: list[Any], numbers: tuple) -> None:
        """Compile elsewhere, on copies of this call's inputs."""
        samples = [a.clone() for a in arrays] + [_tensor(n, self.engine.at) for n in numbers]
        self.thread = threading.Thread(target=self._compile, args=(samples,), name="gt-compile", daemon=True)
        self.thread.start()

    def _compile(self, samples: list[Any]) -> None:
        began = self.engine.clock()
        try:
            with _turns, torch.inference_mode():
                function = capturable(self.program, self.engine)
                fx = make_fx(lambda *xs: _apart(function(*xs), xs))(*samples)
                compiled = torch.compile(fx, fullgraph=True, dynamic=False)
                compiled(*samples)
        except Exception as refused:  # a compiler may fail in any way; the straight-line function serves on
            self.failure = (
                f"torch.compile: {type(refused).__name__}: {str(refused).splitlines()[0][:120] if str(refused) else ''}"
            )
            return
        self.seconds = self.engine.clock() - began
        self.compiled = compiled
        if self.engine.at.type == "cuda":
            self.graph = Graph(self.program, self.engine)
            self.graph.function = compiled

    def _checked(self, arrays: list[Any], numbers: list[Any], plain: tuple) -> bool:
        """Whether the compiled form gives what the straight-line function gives, within rounding."""
        self.unchecked = False
        assert self.compiled is not None
        want = self.program.function(list(arrays), *plain)
        have = self.compiled(*arrays, *numbers)
        for a, b in zip(have, want):
            if not torch.allclose(a.float(), b.float(), rtol=1e-3, atol=1e-5, equal_nan=True):
                self.failure = "its results differ from those of the straight-line function"
                self.program.give_up(self.failure)
                return False
        return True

    def stats(self) -> dict[str, float]:
        own = {"compiled": float(self.compiled is not None), "compiled_calls": self.runs, "compile_seconds": self.seconds}
        if self.graph is not None:
            for name, value in self.graph.stats().items():
                own[name] = own.get(name, 0) + value
        return own


def _tensor(n: Any, at: Any) -> torch.Tensor:
    return torch.tensor(n, dtype=torch.float64 if isinstance(n, float) else torch.int64, device=at)


def _apart(made: tuple, inputs: tuple) -> tuple:
    """Results of their own memory: no result is an input, nor a view of one."""
    owned = {x.untyped_storage()._cdata for x in inputs}
    return tuple(m.clone() if m.untyped_storage()._cdata in owned else m for m in made)
