"""Programs compiled by Inductor: the whole program is one torch.fx graph, compiled in the background while the straight-line
function serves calls, and then replaces it; on CUDA it is also captured as a CUDA graph. Dynamo is not needed, as the trace is
known, and there are no guards. Updates of parameters stay PyTorch's fused kernels, which write in place, while compiled code
would write a second copy of all parameters."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from functools import cache
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
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.graph_function import capturable, where_it_lies
from gt.worker.engine.torch.graph_images import images_last
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.split_updates import split_updates

HOT = 3  # calls before a program is compiled
_turns = threading.Lock()  # torch.fx patches functions while it traces, so only one program is compiled at a time
_threads: set[threading.Thread] = set()  # threads that compile, or wait for the lock
_ending = threading.Event()  # set when the process ends: no compilation starts any more


def busy() -> bool:
    """Whether a program is being compiled."""
    return _turns.locked()


def join() -> None:
    """Wait until no program is being compiled, or waits for its turn."""
    for thread in tuple(_threads):
        thread.join()


@atexit.register
def finish() -> None:
    """Wait for the current compilation, and begin no other. At exit Python ends a thread when it next acquires the GIL: inside
    C++ code, such as the compiler or a tensor's destructor, that aborts the whole process. So the threads are joined, not just
    the lock awaited."""
    _ending.set()
    join()


@cache
def keep_guard() -> None:
    """Enter a FakeTensorMode first in a thread that never ends. Where no GPU is visible, CUDA builds of PyTorch up to 2.11
    make an object of the first thread that enters one the guard of all threads (pytorch/pytorch#178950): once that thread has
    ended, the next compilation reads freed memory."""
    if torch.version.cuda is None or torch.cuda.is_available():
        return
    entered = threading.Event()

    def hold() -> None:
        with FakeTensorMode():
            entered.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="gt-compile-guard", daemon=True).start()
    entered.wait()


def build(function: Callable[..., tuple], samples: list[torch.Tensor]) -> Callable[..., Any]:
    """The compiled function of these tensors. PyTorch's cache on disk requires tracing with a ShapeEnv, although all shapes are
    static."""
    fx = make_fx(lambda *xs: _apart(function(*xs), xs))(*samples)
    fake = FakeTensorMode(shape_env=ShapeEnv())
    with tracing(TracingContext(fake)):
        return torch._inductor.compile(fx, [fake.from_tensor(s, static_shapes=True) for s in samples])


class CompiledCode:
    """A program as compiled code and fused updates."""

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
        """The results of the compiled code. The input arrays are not modified."""
        given = list(arrays)
        for i, (a, stride) in enumerate(zip(given, self.strides)):
            if a.stride() != stride:
                given[i] = torch.empty_strided(a.shape, stride, dtype=a.dtype, device=a.device).copy_(a)
                self.copied += 1
        return tuple(self.first(*given, *[_tensor(n, self.at) for n in numbers]))

    def end(self, arrays: list[Any], made: tuple, numbers: tuple) -> tuple:
        """Run the updates and return the program's results. Only `arrays` may hold the inputs that die with the call."""
        if self.halves is None:
            return made
        _, _, given, results = self.halves
        operands = [arrays[i] if i < self.inputs else made[i - self.inputs] for i in given]
        del arrays[:]
        made = (*made, *self.updates(operands, *numbers))
        return tuple(made[i] for i in results)


class Inductor:
    """A program during and after its compilation. Numbers of a call become 0-d tensors, so that another number does not compile
    it again; an input with other strides than those compiled for is copied."""

    def __init__(self, program: Any, engine: Any) -> None:
        self.program, self.engine = program, engine
        self.calls = self.runs = self.built = self.cached = 0
        self.seconds = 0.0
        self.compiled: CompiledCode | None = None
        self.graph: Graph | None = None
        self.failure = ""
        self.thread: threading.Thread | None = None

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        threads = self.engine.threads
        return bool(threads.all(self._run, table, ins)) if threads is not None else self._run(table, ins)

    def _run(self, table: dict[int, Any], ins: tuple) -> bool:
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
        except Exception as refused:  # compiled code may raise anything; the straight-line function runs instead
            program.give_up(_reason("its call failed", refused))
            return False
        for i in program.dies:
            del table[ins[i]]
        table.update(by_result(ins, self.compiled.end(arrays, made, numbers)))
        self.runs += 1
        return True

    def _start(self, arrays: list[Any], numbers: tuple) -> None:
        """Compile in a thread, with copies of this call's inputs as samples."""
        keep_guard()
        last = images_last(self.program.program, self.engine.at)  # as the graph will have them
        samples = [a.clone(memory_format=torch.channels_last) if i in last else a.clone() for i, a in enumerate(arrays, 1)]
        self.thread = threading.Thread(target=self._compile, args=(samples, numbers), name="gt-compile", daemon=True)
        self.thread.start()
        _threads.difference_update([t for t in tuple(_threads) if not t.is_alive()])
        _threads.add(self.thread)

    def _compile(self, samples: list[Any], numbers: tuple) -> None:
        if self.engine.threads is not None:
            torch.set_num_threads(self.engine.threads.total)  # of this thread; compiled code takes as many
        try:
            with _turns, torch.inference_mode():
                if _ending.is_set() or self.program.dropped:  # as others' programs were compiled first
                    return
                began, hits = self.engine.clock(), counters["inductor"]["fxgraph_cache_hit"]
                self.built += 1
                compiled = CompiledCode(self.program, self.engine, samples, numbers)
                wrong = self._fault(compiled(*(s.clone() for s in samples), *numbers), samples, numbers)
                self.cached = counters["inductor"]["fxgraph_cache_hit"] - hits
                self.seconds = self.engine.clock() - began
        except Exception as refused:  # a compiler may raise anything; the straight-line function stays
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
        self.compiled = compiled  # last: from now on calls run it

    def _fault(self, made: Any, samples: list[Any], numbers: tuple) -> str:
        """A description of wrong results, or "": their specs are always checked, their values with GT_CHECK_COMPILED."""
        for array, spec in zip(made, self.program.results):
            if tuple(array.shape) != spec.shape or str(array.dtype) != f"torch.{spec.dtype.name}":
                return f"the compiled code returned {array.dtype}{list(array.shape)}: expected {spec}"
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
        """Release the CUDA graph, if any; the compiled code stays."""
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
    """Results in separate memory: a result that is an input or shares memory is copied."""
    owned = {x.untyped_storage()._cdata for x in inputs}
    return tuple(m.clone() if m.untyped_storage()._cdata in owned else m for m in made)
