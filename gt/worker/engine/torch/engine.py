"""The PyTorch engine, on a GPU if there is one. Pointwise rows have PyTorch's names, so its functions are their kernels;
`kernels.py` has faster kernels for other rows, and the rest run the rows' generic kernels over `namespace.py`."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from ctypes import string_at
from functools import lru_cache, partial
from typing import Any, cast
from weakref import WeakSet

import numpy as np
import psutil
import torch

from gt import environment
from gt.lazy_import import LazyImport
from gt.ops import Kind
from gt.ops.rules import promote
from gt.program import Instruction
from gt.small import NATIVE
from gt.spec import Spec, bfloat16
from gt.worker.engine import OWN as OURS
from gt.worker.engine.torch.client_streams import ClientStreams
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.host_copy import TorchCopy
from gt.worker.engine.torch.kernels import GATHERED, NUMBERS, OWN
from gt.worker.engine.torch.lists import alike, is_tiny, of_list
from gt.worker.engine.torch.namespace import TorchNamespace, Uncopied
from gt.worker.engine.torch.narrow_products import in_float32
from gt.worker.engine.torch.numpy_traces import numpy_trace
from gt.worker.engine.torch.pairs import half, of_pair
from gt.worker.engine.torch.small_runs import SmallRuns
from gt.worker.engine.torch.threads import KernelThreads
from gt.worker.engine.torch.training import over_dying

group_graph = LazyImport("gt.worker.engine.torch.group_graph")
inductor = LazyImport("gt.worker.engine.torch.inductor")  # loads torch.compile, which takes seconds


def _unlent(run: Callable[..., Any], a: torch.Tensor, *operands: Any) -> Any:
    """Run a view op on a copy if the operand is a buffer that a CUDA graph will overwrite."""
    return run(a.clone() if getattr(a, "lent", False) else a, *operands)


def _at_precision(run: Callable[..., Any], precision: str, *operands: Any) -> Any:
    """Run a product in a precision of float32. PyTorch's setting is the process's, and kernels run one after another."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        return run(*operands)
    finally:
        torch.set_float32_matmul_precision(before)


LARGE = 1 << 20  # bytes that are copied by all threads
STAGED = 1 << 16  # bytes up to which CUDA takes a copy of pageable memory at once, so that it need not be waited for
COMPLEX = 3  # rank of complex dtypes, whose conjugates may be views
SMALL = 1 << 12  # bytes up to which NumPy copies in less time than PyTorch starts to
LOADED = 1 << 17  # the same, if the bytes are not PyTorch's before
WIDE = 128  # operands and results of a call from which others' questions are executed in the middle of it


@lru_cache(1 << 6)
def empty_of(spec: Spec) -> torch.Tensor:
    """A tensor on the CPU that others are made like."""
    return torch.empty(spec.shape, dtype=TORCH[spec.dtype])


class TorchEngine:
    name = "pytorch"
    base = ""

    def __init__(self, device: str) -> None:
        self.at = torch.device(device)
        self.device = device if self.at.type == "cpu" else f"{device} {torch.cuda.get_device_name(self.at)}"
        self.xp = TorchNamespace(self.at)
        self.uncopied = Uncopied(self.at)
        self.clock: Callable[[], float] = float  # the shell sets a real clock
        self.fell_back: dict[str, str] = {}
        self.streams = ClientStreams(self.at) if self.at.type == "cuda" else None
        self.uploads = torch.cuda.Stream(self.at) if self.at.type == "cuda" else None
        self.graphs: WeakSet[Graph] = WeakSet()
        self.small_runs = SmallRuns() if self.at.type == "cpu" and NATIVE is not None else None
        self.chains: Any = None  # the kernels of chains, once a graph has some
        self.threads: KernelThreads | None = KernelThreads() if self.at.type == "cpu" else None

    def begin(self) -> None:
        self.mode = torch.inference_mode()  # for the life of the process: PyTorch's autograd is never used
        self.mode.__enter__()  # (the object is kept: the mode ends when it is freed)

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        if self.small_runs is not None and (own := self.small_runs.kernel(kind)) is not None:
            return own
        run = self.plain(kind)
        if self.threads is not None:
            return self.threads.wrapped(kind, run)
        return partial(_unlent, run) if kind.row.view and self.at.type == "cuda" else run

    def way(self, kind: Kind) -> str:
        return OURS

    def plain(self, kind: Kind) -> Callable[..., Any]:
        """A kernel whose result may share memory with its operand."""
        run = self._as_given(kind)
        return in_float32(kind, run) if self.at.type == "cpu" else run

    def _as_given(self, kind: Kind) -> Callable[..., Any]:
        """The same, in the dtypes of its operands."""
        row = kind.row
        own = OWN.get(row.name)
        if own is None and row.pointwise:
            own = getattr(torch, row.name, None) or getattr(torch.special, row.name, None)
        if own is not None and row.pointwise and row.name not in OWN:
            if row.name not in NUMBERS or not isinstance(kind.ins[0], Spec):
                own = self.tensors_only(own, kind)
        if own is None:
            return self.generic(kind)
        return self._precise(kind, partial(own, **kind.settings) if kind.settings else own)

    def generic(self, kind: Kind) -> Callable[..., Any]:
        """The row's own kernel, which accepts 0-d tensors as numbers."""
        assert kind.row.kernel is not None, f"{kind.row} has no kernel of its own"
        return self._precise(kind, partial(kind.row.kernel, self.xp, **kind.settings))

    def _precise(self, kind: Kind, run: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel in the precision of its kind."""
        return partial(_at_precision, run, kind.precision) if self._lowered(kind) else run

    def _lowered(self, kind: Kind) -> bool:
        """Whether a kind is a product in less than the highest precision; "high" is TF32, which CPUs do not have."""
        return bool(kind.precision) and (kind.precision != "high" or self.at.type != "cpu")

    def writing(self, kind: Kind) -> Callable[..., Any]:
        """The kernel of an op that writes into a copy of its first operand: into that itself."""
        assert kind.row.kernel is not None
        return partial(kind.row.kernel, self.uncopied, **kind.settings)

    def over(self, kind: Kind) -> Callable[..., Any] | None:
        name = kind.row.name
        if self.at.type != "cpu" or kind.outs != kind.ins[:1] or self.plain(kind) is not getattr(torch, name, None):
            return None
        if self.small_runs is not None and self.small_runs.is_own(kind):
            return None
        run = getattr(torch.Tensor, f"{name}_", None)
        return self.threads.wrapped(kind, run) if run is not None and self.threads is not None else run

    def update(self, kind: Kind) -> Callable[..., Any] | None:
        run = GATHERED.get(kind.row.name)
        if run is None:
            return None
        over = partial(over_dying, run, kind.row.reads, **kind.settings)
        return partial(self.threads.for_updates, over) if self.threads is not None else over

    def alike(self, ins: Instruction) -> Hashable:
        return alike(ins) if is_tiny(ins) else None

    def half(self, ins: Instruction) -> tuple[Hashable, bool] | None:
        return half(ins)

    def many(self, kind: Kind) -> Callable[..., Any] | None:
        if (run := of_pair(kind)) is not None:
            return self.threads.wrapped(kind, run) if self.threads is not None else run
        return self.update(kind) or of_list(kind)

    def faster(self, program: Any) -> Any:
        if program.compile or environment.AUTO_COMPILE.value() and program.large:
            if not any(self._lowered(ready.kind) for ready in program.kinds.values()):
                return inductor.Inductor(program, self)
            program.tell("not compiled: a compiled program has no precisions of float32 products of its own")
        if self.at.type == "cuda" and environment.CUDA_GRAPHS.value():
            graph = Graph(program, self)
            graph.question = not program.large
            if program.turns is not None and program.inputs + program.result_count >= WIDE:
                graph.let_in = program.turns.let_in
            return graph
        if self.at.type == "cpu" and not program.is_runs:
            return numpy_trace(program)
        return None

    def group_recording(self, trace: Any, collectives: Any, group: tuple[int, ...]) -> Any:
        if self.at.type != "cuda" or not environment.CUDA_GRAPHS.value():
            return None
        return group_graph.GroupGraph(trace, self, collectives, group)

    def tensors_only(self, function: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        """Wraps a PyTorch function that accepts no numbers, or none as first operand: they become 0-d tensors."""
        if all(isinstance(s, Spec) for s in kind.ins):
            return function
        dtype = TORCH[promote(*kind.ins)]

        def call(*operands: Any) -> Any:
            return function(*[
                o if isinstance(o, torch.Tensor) else torch.full((), o, dtype=dtype, device=self.at) for o in operands
            ])  # fmt: skip

        return call

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> torch.Tensor:
        if spec.numel == 0:
            return torch.empty(spec.shape, dtype=TORCH[spec.dtype], device=self.at)
        if copy and self.small_runs is not None and spec.nbytes <= LOADED:
            return cast(torch.Tensor, NATIVE.loaded(buffer, empty_of(spec)))
        if copy and spec.nbytes <= LOADED and self.threads is not None and spec.dtype is not bfloat16:
            return torch.from_numpy(np.frombuffer(buffer, spec.dtype.name, spec.numel).reshape(spec.shape).copy())
        if memoryview(buffer).readonly:
            buffer, copy = memoryview(bytearray(buffer)), False  # PyTorch has no read-only tensors
        host = torch.frombuffer(buffer, dtype=TORCH[spec.dtype], count=spec.numel).reshape(spec.shape)
        if self.at.type != "cpu":
            return self._uploaded(host)
        if not copy:
            return host
        return self.threads.all(host.clone) if self.threads is not None and spec.nbytes >= LARGE else host.clone()

    def _uploaded(self, host: torch.Tensor) -> torch.Tensor:
        """A copy on the device, while the client's stream is busy over another one: on its own it would wait for all that is
        launched there, and the worker with it."""
        if self.uploads is None or self.streams is None or (stream := self.streams.stream()).query():
            return host.to(self.at, non_blocking=host.nbytes <= STAGED)
        with torch.cuda.stream(self.uploads):
            made = host.to(self.at)  # returns when the bytes are there
        made.record_stream(stream)
        return made

    def store(self, array: torch.Tensor, spec: Spec) -> memoryview:
        if spec.numel == 0:
            return memoryview(b"")
        host = array if array.is_cpu else self._downloaded(array)
        if (nbytes := spec.nbytes) <= SMALL and spec.dtype is not bfloat16:
            if host.is_contiguous() and host.nbytes == nbytes and spec.dtype.rank < COMPLEX and not host.is_neg():
                return memoryview(string_at(host.data_ptr(), nbytes))  # without an array of NumPy, which takes 3 us more
            return memoryview(host.numpy().tobytes())
        if spec.dtype is bfloat16:  # NumPy has no bfloat16
            host = host.view(torch.int16)
        return np.ascontiguousarray(host.detach().numpy()).reshape(-1).view(np.uint8).data

    def _downloaded(self, array: torch.Tensor) -> torch.Tensor:
        """A copy on the host; the kernels behind a small result of a graph are not waited for."""
        if (result := getattr(array, "host", None)) is not None:
            self.sync()
            return cast(torch.Tensor, result.host)  # its bytes are in the message
        done = getattr(array, "done", None)
        return array.cpu() if done is None or self.streams is None else self.streams.read_early(array, done)

    def sync(self) -> None:
        if self.streams is not None:
            self.streams.stream().synchronize()  # of the current client

    def buffer(self, array: torch.Tensor) -> tuple[int, int]:
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes()

    def capacity(self) -> int:
        if self.at.type != "cuda":
            return 0
        return int(torch.cuda.mem_get_info(self.at)[0]) + torch.cuda.memory_reserved(self.at)  # without other processes'

    def devices(self) -> int:
        return torch.cuda.device_count() if self.at.type == "cuda" else 1

    def allocated(self) -> int | None:
        if self.at.type != "cuda":
            return None
        return torch.cuda.memory_allocated(self.at) + sum(graph.kept for graph in self.graphs)

    def recordings(self) -> dict[int, int]:
        found = {-id(graph): graph.kept for graph in self.graphs}
        return found | {number: nbytes for graph in self.graphs for number, nbytes in map(self.buffer, graph.held())}

    def to_host(self, arrays: list[torch.Tensor]) -> TorchCopy | None:
        if any(getattr(a, "lent", False) for a in arrays):
            return None  # a CUDA graph's buffer, whose memory would stay
        return TorchCopy(arrays)

    def poisoned(self, error: Exception) -> bool:
        if self.at.type != "cuda" or not isinstance(error, RuntimeError) or isinstance(error, torch.OutOfMemoryError):
            return False
        try:
            torch.cuda.synchronize(self.at)
        except RuntimeError:  # after a kernel's error every CUDA call of the process raises it
            return True
        return False

    def memory(self) -> tuple[int, int]:
        if self.at.type == "cuda":
            return torch.cuda.memory_allocated(self.at), torch.cuda.get_device_properties(self.at).total_memory
        return psutil.Process().memory_info().rss, psutil.virtual_memory().total


def best_device() -> str:
    """The GPU for this process, or the CPU if there is none."""
    os.environ.setdefault(
        "CUDA_DEVICE_MAX_CONNECTIONS", "32"
    )  # CUDA reads it at its start; with 8, clients' streams share queues
    if not torch.cuda.is_available():
        return "cpu"
    rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    return f"cuda:{rank % torch.cuda.device_count()}"


def make(name: str = "pytorch") -> TorchEngine:
    return TorchEngine(best_device())
