"""The executor with kernels in CUDA C++: a small batch's step is one kernel, a larger one's a few a layer with cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gt.persistent.executor import ExecutorSettings
from gt.persistent.gpu import structures
from gt.persistent.gpu.executor import GraphExecutor, Rows
from gt.persistent.gpu.module import EARLY, GpuModule, compile_cuda
from gt.persistent.gpu.persistent import StepKernel
from gt.persistent.gpu.phases import Product
from gt.persistent.gpu.state import DecodeState, choose_on_device
from gt.persistent.program import Attention, DecodeProgram

SOURCES = [
    Path(__file__).parent / name
    for name in (
        *("attention.cu", "attention_tiles.cu", "decode.cu"),
        *("step_words.cu", "step_ring.cu", "step_attention.cu", "persistent.cu"),
    )
]
MOST_WIDTH = 256  # numbers of a head
WARPS, BLOCKS = 4, 2  # of attention_kernel: in a block, and blocks on a multiprocessor


def source() -> str:
    return "\n".join(file.read_text() for file in SOURCES)


class CudaExecutor(GraphExecutor):
    """With use_cutlass_kernel NVIDIA's library, whose kernels are CUTLASS's, computes all products, even for small batches."""

    options = ("device", "use_cutlass_kernel")

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        import torch

        super().__init__(program, settings)
        torch.cuda.set_device(self.device)
        properties = torch.cuda.get_device_properties(self.device)
        self.units = properties.multi_processor_count
        if any(layer.head_dim > MOST_WIDTH for layer in program.attentions()):
            raise ValueError(f"backend 'cuda' runs heads of at most {MOST_WIDTH} numbers: use backend='pytorch'")
        architecture = f"sm_{properties.major}{properties.minor}"
        self.module = GpuModule(compile_cuda(source(), architecture, (f"GT_BFLOAT16={int(settings.dtype == 'bfloat16')}",)))
        self.early = EARLY if properties.major >= 9 else None
        self.scratch: dict[tuple[Any, ...], Any] = {}
        whole_step = properties.major >= 9 and not settings.use_cutlass_kernel
        self.step_kernel = StepKernel.fitting(self) if whole_step else None

    def room(self, name: str, *shape: int, dtype: Any = None) -> Any:
        """Static memory between two kernels, zeros at first."""
        import torch

        key = (name, *shape)
        if key not in self.scratch:
            self.scratch[key] = torch.zeros(shape, dtype=dtype or torch.float32, device=self.device)
        return self.scratch[key]

    def step(self, rows: int, greedy: bool) -> None:
        if self.step_kernel is None or rows > self.step_kernel.most_rows:
            return super().step(rows, greedy)
        state = self.run_state()
        self.step_kernel.launch(state, rows, greedy)
        if not greedy:
            choose_on_device(self.logits[:rows], state, rows)
            self.advance(state, rows)
        return None

    def launch(self, name: str, grid: Sequence[int], threads: int, *arguments: Any, shared: int = 0) -> None:
        """Kernels of decode.cu begin while the one before them ends, where the GPU can."""
        self.module.launch(name, grid, threads, *arguments, shared=shared, attribute=self.early)

    def embed_rows(self, tokens: Any, table: Any, out: Any) -> None:
        self.launch("embed_kernel", [len(out)], 256, tokens, table, out, out.shape[1], table.stride(0))

    def norm(self, x: Any, weight: Any, eps: float, out: Any) -> None:
        self.launch("norm_kernel", [len(x)], 256, x, weight, out, x.shape[1], eps)

    def gate(self, x: Any, out: Any) -> None:
        rows, width = out.shape
        self.launch("gate_kernel", [-(-rows * width // 256)], 256, x, out, rows, width)

    def product(self, phase: Product, x: Any, residual: Any, out: Any) -> None:
        """The product by cuBLAS: with more rows it is faster than our kernel."""
        import torch

        rows, width = x.shape
        weight, bias = self.weight(phase.weight), self.weight(phase.bias)
        if phase.norm is not None:
            normed = self.room("normed", self.most_rows, width, dtype=self.dtype)[:rows]
            self.norm(x, self.weight(phase.norm), phase.eps, normed)
            x = normed
        turned = weight[:, :width].T
        if residual is not None and residual.data_ptr() == out.data_ptr() and bias is None and out.dtype == self.dtype:
            out.addmm_(x, turned)
            return
        if residual is None and bias is None and not phase.silu and self.dtype != out.dtype == torch.float32:
            torch.mm(x, turned, out_dtype=torch.float32, out=out)
            return
        made = out
        if phase.silu or out.dtype != self.dtype:
            made = self.room("product", self.most_rows, len(weight), dtype=self.dtype)[:rows]
        if residual is not None and residual.data_ptr() == made.data_ptr():
            residual = residual.clone()
        torch.mm(x, turned, out=made)
        if bias is not None:
            made.add_(bias)
        if phase.silu:
            self.gate(made, out)
        elif made is not out:
            out.copy_(made)
        if residual is not None:
            out.add_(residual)

    def attend(self, layer: Attention, qkv: Any, out: Any, rows: Rows) -> None:
        import torch

        count, d = len(rows), layer.head_dim
        state = self.run_state()
        where = structures.pages_row(rows.positions, rows.slots, state, self.settings.page_size)
        row = structures.attention_row(layer, self.weight, self.cache)
        self.launch("rotate_kernel", [count, layer.heads + 2 * layer.kv_heads], 32, qkv, row, where, shared=(d + 1) * 4)
        items = count * layer.kv_heads * structures.chunks(layer)
        splits = max(1, min(structures.MOST_SPLITS, BLOCKS * self.units // items))
        most = self.most_rows if splits == 1 else count
        partials = structures.PartialsRow(
            self.room("sums", most, layer.heads, splits, d if splits > 1 else 1).data_ptr(),
            self.room("weights", most, layer.heads, splits, 2).data_ptr(),
            self.room("arrived", most, layer.heads, dtype=torch.int32).data_ptr(),
            splits,
        )
        shared = structures.attention_bytes(layer, WARPS)
        self.launch("attention_kernel", [items * splits], 32 * WARPS, qkv, out, row, where, partials, shared=shared)

    def argmax(self, logits: Any, chosen: Any) -> None:
        import torch

        rows, count = logits.shape
        parts = max(1, min(32, 4 * self.units // rows, count // 1024))
        bests = self.room("bests", self.most_rows, 32, 2, dtype=torch.int32)
        arrived = self.room("argmax arrived", self.most_rows, dtype=torch.int32)
        self.launch("argmax_kernel", [rows, parts], 256, logits, chosen, bests, arrived, count)

    def advance(self, state: DecodeState, rows: int) -> None:
        self.launch("advance_kernel", [1], -(-rows // 32) * 32, structures.run_row(state), rows)

    def close(self) -> None:
        super().close()
        self.scratch, self.step_kernel = {}, None
