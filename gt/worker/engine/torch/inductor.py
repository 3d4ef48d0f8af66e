"""Traces through torch.compile's compiler: the whole trace as one torch.fx graph, compiled by Inductor in the background while
the straight-line function goes on serving, and then put in its place; on CUDA, captured as a CUDA graph besides. What Dynamo
would find out by running Python is known here from the trace, so it has no part in it and there is nothing to guard. Updates
of parameters stay PyTorch's fused kernels, which write in place where compiled code would write a second copy of them all."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor
from torch._dynamo.utils import counters
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gt.program.code import by_result
from gt.worker.engine.torch.checking import alike, wanted
from gt.worker.engine.torch.cuda_graph import Graph, capturable, where_it_lies
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.split_updates import split_updates

HOT = 3  # calls before a trace is worth compiling
_turns = threading.Lock()  # torch.fx patches functions while it traces, so one trace is compiled at a time
_threads: set[threading.Thread] = set()  # that compile, or wait for their turn
_ending = threading.Event()  # the process ends: nothing more is compiled


def busy() -> bool:
    """Whether something is being compiled."""
    return _turns.locked()


@atexit.register
def finish() -> None:
    """Wait for the compilation under way, and begin no other. At its exit Python ends a thread where it next asks for the
    interpreter: within C++, be it the compiler or a tensor's end, that is an abort of the whole process. So the threads
    themselves are waited for, not their turns."""
    _ending.set()
    for thread in tuple(_threads):
        thread.join()


def build(function: Callable[..., tuple], samples: list[torch.Tensor]) -> Callable[..., Any]:
    """The function of these tensors, compiled. PyTorch's cache on disk serves only those who trace with an environment of
    shapes; all of them are static."""
    fx = make_fx(lambda *xs: _apart(function(*xs), xs))(*samples)
    fake = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(fake)):
        return torch._inductor.compile(fx, [fake.from_tensor(s, static_shapes=True) for s in samples])


class CompiledCode:
    """A trace as compiled code, and the updates it leads to."""

    def __init__(self, program: Any, engine: Any, samples: list[torch.Tensor], numbers: tuple) -> None:
        on_gpu = engine.at.type == "cuda"
        self.at, self.inputs, self.copied = engine.at, program.inputs, 0
        self.strides = [s.stride() for s in samples]
        update = where_it_lies if on_gpu else engine.update
        fused = program.stage("updates fused", fuse_updates(program.program, lambda kind: update(kind) is not None))
        self.halves = split_updates(fused)
        first = program.stage("without updates", self.halves.first) if self.halves is not None else program.program
        function = capturable(first, {n: program.kinds[n] for n in first.kinds}, engine, in_place=False)
        self.first = build(function, [*samples, *(_tensor(n, self.at) for n in numbers)])
        if self.halves is not None:
            kernels = {n: r.run for n, r in program.kinds.items()}
            program.stage("updates", self.halves.updates)
            self.updates = straight_line(self.halves.updates, KernelTable(kernels, fused=update))

    def __call__(self, *operands: Any) -> tuple:
        arrays, numbers = list(operands[: self.inputs]), operands[self.inputs :]
        del operands
        return self.end(arrays, self.begin(arrays, numbers), numbers)

    def begin(self, arrays: list[Any], numbers: tuple) -> tuple:
        """What the compiled code gives. The arrays are left as they are."""
        given = list(arrays)
        for i, (a, stride) in enumerate(zip(given, self.strides)):
            if a.stride() != stride:
                given[i] = torch.empty_strided(a.shape, stride, dtype=a.dtype, device=a.device).copy_(a)
                self.copied += 1
        return tuple(self.first(*given, *[_tensor(n, self.at) for n in numbers]))

    def end(self, arrays: list[Any], made: tuple, numbers: tuple) -> tuple:
        """The results of the trace. Nobody but `arrays` is to hold what ends with the call."""
        if self.halves is None:
            return made
        _, _, given, results = self.halves
        operands = [arrays[i] if i < self.inputs else made[i - self.inputs] for i in given]
        del arrays[:]
        made = (*made, *self.updates(operands, *numbers))
        return tuple(made[i] for i in results)


class Inductor:
    """A trace that is being compiled, or has been. Numbers of a call become 0-d tensors, so that no other number compiles it
    anew; an input whose strides are others than those compiled for is copied into them."""

    def __init__(self, program: Any, engine: Any) -> None:
        self.program, self.engine = program, engine
        self.calls = self.runs = self.built = self.cached = 0
        self.seconds = 0.0
        self.compiled: CompiledCode | None = None
        self.graph: Graph | None = None
        self.failure = ""
        self.thread: threading.Thread | None = None

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        self.calls += 1
        if self.failure:
            self.program.give_up(self.failure)
            return False
        if self.graph is not None:
            return self.graph.run(table, ins)
        program, encoding = self.program, self.program.encoding
        arrays, numbers = [table[i] for i in ins[encoding.inputs]], ins[encoding.given]
        if self.compiled is None:
            if self.thread is None and self.calls > HOT:
                self._start(arrays, numbers)
            return False
        try:
            made = self.compiled.begin(arrays, numbers)
        except Exception as refused:  # compiled code may fail in any way; the program then runs as written
            program.give_up(_reason("its call failed", refused))
            return False
        for i in program.dies:
            del table[ins[i]]
        table.update(by_result(ins, self.compiled.end(arrays, made, numbers)))
        self.runs += 1
        return True

    def _start(self, arrays: list[Any], numbers: tuple) -> None:
        """Compile elsewhere, on copies of this call's inputs."""
        samples = [a.clone() for a in arrays]
        self.thread = threading.Thread(target=self._compile, args=(samples, numbers), name="gt-compile", daemon=True)
        self.thread.start()
        _threads.difference_update([t for t in tuple(_threads) if not t.is_alive()])
        _threads.add(self.thread)

    def _compile(self, samples: list[Any], numbers: tuple) -> None:
        try:
            with _turns, torch.inference_mode():
                if _ending.is_set():
                    return
                began, hits = self.engine.clock(), counters["inductor"]["fxgraph_cache_hit"]
                self.built += 1
                compiled = CompiledCode(self.program, self.engine, samples, numbers)
                wrong = self._fault(compiled(*(s.clone() for s in samples), *numbers), samples, numbers)
                self.cached = counters["inductor"]["fxgraph_cache_hit"] - hits
                self.seconds = self.engine.clock() - began
        except Exception as refused:  # a compiler may fail in any way; the straight-line function serves on
            self.failure = _reason("torch.compile", refused)
            return
        if wrong:
            self.failure = wrong
            return
        cached = ", in part from the cache on disk" if self.cached else ""
        self.program.tell(f"compiled in {self.seconds:.2f} s{cached}", self.seconds)
        if self.engine.at.type == "cuda":
            graph = Graph(self.program, self.engine)
            graph.function = compiled
            self.graph = graph
        self.compiled = compiled  # last: from here on it is run

    def _fault(self, made: Any, samples: list[Any], numbers: tuple) -> str:
        """What is wrong with the results, if anything: their specs are always looked at, their values if one asks for it."""
        for array, spec in zip(made, self.program.results):
            if tuple(array.shape) != spec.shape or str(array.dtype) != f"torch.{spec.dtype.name}":
                return f"compiled, it gave {array.dtype}{list(array.shape)} for {spec}"
        if not wanted():
            return ""
        for i, (a, b) in enumerate(zip(made, self.program.function(samples, *numbers))):
            if not alike(a, b):
                return f"compiled, its result {i} differs from that of the straight-line function"
        return ""

    @property
    def recorded(self) -> bool:
        return self.graph is not None and self.graph.recorded

    def release(self) -> bool:
        """As a graph's; what was compiled stays."""
        return self.graph is not None and self.graph.release()

    def stats(self) -> dict[str, float]:
        busy = self.thread is not None and self.thread.is_alive()
        own = {
            "compiling": float(busy), "compiled": float(self.compiled is not None), "compilations": self.built,
            "compiled_calls": self.runs, "compile_seconds": self.seconds, "compile_cache_hits": self.cached,
            "inputs_copied": self.compiled.copied if self.compiled is not None else 0,
        }  # fmt: skip
        if self.graph is not None:
            for name, value in self.graph.stats().items():
                own[name] = own.get(name, 0) + value
        return own


def _reason(what: str, error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{what}: {type(error).__name__}: {text[0][:160] if text else ''}".rstrip(": ")


def _tensor(n: Any, at: Any) -> torch.Tensor:
    if isinstance(n, torch.Tensor):
        return n
    return torch.tensor(n, dtype=torch.float64 if isinstance(n, float) else torch.int64, device=at)


def _apart(made: tuple, inputs: tuple) -> tuple:
    """Results of their own memory: no result is an input, nor a view of one."""
    owned = {x.untyped_storage()._cdata for x in inputs}
    return tuple(m.clone() if m.untyped_storage()._cdata in owned else m for m in made)
