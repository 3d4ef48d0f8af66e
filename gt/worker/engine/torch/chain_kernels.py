"""Kernels of chains and products, compiled by Triton in a thread: a CUDA graph is recorded without them first, and again when
it can have them. With TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

import atexit
import linecache
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import torch
import triton
import triton.language as tl

from gt.ops import Kind
from gt.spec import Spec
from gt.worker.engine.torch.chain_source import BLOCK, is_elementwise, source
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.packed import packed

Array = torch.Tensor
IMAGES = 4  # axes of tensors that may lie with their channels last
MOST = 512  # kernels that a process compiles
NUMBERS = {float: torch.float64, int: torch.int64}  # of numbers that calls give


class ChainKernel:
    """The kernel of a chain. `is_ready` when it is compiled, `is_done` also when its compilation failed."""

    is_ready = is_done = False

    def __init__(self, kind: Kind, text: str) -> None:
        self.text = text
        self.results = [(spec.shape, TORCH[spec.dtype]) for spec in kind.outs]
        self.dtypes = [TORCH[s.dtype] if isinstance(s, Spec) else NUMBERS[s] for s in kind.ins]
        self.elements = math.prod(kind.outs[0].shape)
        self.of_images = kind.outs[0].ndim == IMAGES and is_elementwise(kind)

    def compile(self, at: torch.device) -> None:
        """Compile it and load it onto the device: its first launch computes nothing."""
        name = f"<chain {abs(hash(self.text))}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(True), name)  # where Triton looks for the source
        names: dict[str, Any] = {"tl": tl, "__name__": __name__}
        exec(compile(self.text, name, "exec"), names)
        self.kernel = triton.jit(names["chain"])
        given = [torch.zeros(1, dtype=dtype, device=at) for dtype in (*self.dtypes, *(dtype for _, dtype in self.results))]
        self._launch(1, *given, -(-self.elements // BLOCK) * BLOCK)

    def __call__(self, *operands: Array) -> Any:
        layout = torch.contiguous_format
        if self.of_images and all(a.is_contiguous(memory_format=torch.channels_last) for a in operands if a.ndim):
            layout = torch.channels_last
        given = [packed(a, layout if a.ndim else torch.contiguous_format) for a in operands]
        made = [torch.empty(shape, dtype=t, device=given[0].device, memory_format=layout) for shape, t in self.results]
        self._launch(triton.cdiv(self.elements, BLOCK), *given, *made, 0)
        return tuple(made) if len(made) > 1 else made[0]

    def _launch(self, programs: int, *given: Any) -> None:
        self.kernel[(programs,)](*given, num_warps=4, enable_fp_fusion=False)


class ChainKernels:
    """The kernels of a device. `failures` has the compiler's errors."""

    def __init__(self, at: torch.device) -> None:
        self.at = at
        self.kernels: dict[Hashable, Any] = {}
        self.failures: list[str] = []
        self.waiting: deque[Any] = deque()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.ending = False
        atexit.register(self.finish)

    def get(self, kind: Kind) -> ChainKernel | None:
        """The kernel of a chain, which is compiled if it is not yet; None where there are too many."""
        text = source(kind)
        found: ChainKernel | None = self.ask(f"{kind.ins} {kind.outs} {text}", lambda: ChainKernel(kind, text))
        return found

    def ask(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The kernel of this key, which is made and compiled if it is not yet; None where there are too many."""
        with self.lock:
            found = self.kernels.get(key)
            if found is not None or self.ending or len(self.kernels) >= MOST:
                return found
            found = self.kernels[key] = make()
            self.waiting.append(found)
            if self.thread is None:
                self.thread = threading.Thread(target=self._compile, name="gt-chains", daemon=True)
                self.thread.start()
        return found

    def _compile(self) -> None:
        while True:
            with self.lock:
                if not self.waiting or self.ending:
                    self.thread = None
                    return
                kernel = self.waiting.popleft()
            try:
                if self.at.type == "cuda":
                    with torch.cuda.device(self.at), torch.cuda.stream(torch.cuda.Stream(self.at)), torch.inference_mode():
                        kernel.compile(self.at)
                else:
                    kernel.compile(self.at)
                kernel.is_ready = True
            except Exception as refused:  # a compiler may raise anything; the graph keeps the links' own kernels
                self.failures.append(f"{type(refused).__name__}: {refused}"[:200])
            kernel.is_done = True

    def finish(self) -> None:
        """Compile no others, and wait for the current one: at exit Python ends a thread when it next acquires the GIL, which
        inside of a compiler aborts the process."""
        self.ending = True
        if (thread := self.thread) is not None:
            thread.join()
