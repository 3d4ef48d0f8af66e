"""The executor with Triton kernels: seven a layer and step, inside a CUDA graph; on the CPU under Triton's interpreter."""

from __future__ import annotations

import os
from typing import Any

from gt.lazy_import import LazyImport
from gt.persistent import attention
from gt.persistent.executor import ExecutorSettings
from gt.persistent.gpu.executor import GraphExecutor, Rows
from gt.persistent.gpu.phases import Product
from gt.persistent.gpu.state import DecodeState
from gt.persistent.program import Attention, DecodeProgram

kernels = LazyImport("gt.persistent.gpu.triton_kernels")  # imports Triton


def interpreted() -> bool:
    """Triton reads this variable when kernels are defined."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


class TritonExecutor(GraphExecutor):
    @classmethod
    def reason_unavailable(cls) -> str | None:
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported: {error}"
        return None

    @classmethod
    def chosen_device(cls, device: str | None) -> str:
        return "cpu" if interpreted() else super().chosen_device(device)

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        import torch

        super().__init__(program, settings)
        self.captures = not interpreted()
        if self.captures:
            self.units = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.scratch: dict[str, Any] = {}
        self.kept: list[Any] = []

    def room(self, name: str, *shape: int, dtype: Any = None) -> Any:
        """Static memory between two kernels. Memory that graphs may still use is kept if more is requested later."""
        import torch

        size = 1
        for length in shape:
            size *= length
        if name not in self.scratch or self.scratch[name].numel() < size:
            self.scratch[name] = torch.zeros(size, dtype=dtype or torch.float32, device=self.device)
            self.kept.append(self.scratch[name])
        return self.scratch[name]

    def embed_rows(self, tokens: Any, table: Any, out: Any) -> None:
        rows, width = out.shape
        block = min(1024, power_of_two(width))
        kernels.embed_kernel[rows, -(-width // block)](tokens, table, out, width, table.stride(0), BLOCK=block)

    def norm(self, x: Any, weight: Any, eps: float, out: Any) -> None:
        rows, width = x.shape
        kernels.norm_kernel[rows,](x, weight, out, width, eps, BLOCK=power_of_two(width))

    def gate(self, x: Any, out: Any) -> None:
        rows, width = out.shape
        block = min(1024, power_of_two(width))
        kernels.gate_kernel[rows, -(-width // block)](x, out, width, BLOCK=block)

    def product(self, phase: Product, x: Any, residual: Any, out: Any) -> None:
        weight, norm, bias = (self.weight(w) for w in (phase.weight, phase.norm, phase.bias))
        (rows, width), wide = x.shape, out.shape[1]
        up = weight[wide:] if phase.silu else None
        bias_up = bias[wide:] if phase.silu and bias is not None else None
        if rows == 1:
            blocks = dict(BM=1, BN=8, BK=512)
        else:
            blocks = dict(BM=16 if rows <= 16 else 32, BN=32, BK=64)
        if interpreted():  # the interpreter takes the same time for any program
            blocks |= dict(BN=min(256, power_of_two(wide)), BK=min(256, max(16, power_of_two(width))))
        grid = (-(-wide // blocks["BN"]), -(-rows // blocks["BM"]))
        kernels.product_kernel[grid](
            x, norm, weight, up, bias, bias_up, residual, out, rows, wide, width, weight.stride(0), phase.eps,
            NORM=norm is not None, SILU=phase.silu, BIAS=bias is not None, RESIDUAL=residual is not None, **blocks,
        )  # fmt: skip

    def splits(self, programs: int) -> int:
        """The number of parts into which the tokens of a request are split, so that every unit of the GPU has work."""
        if interpreted():
            return 2
        return min(16, power_of_two(-(-2 * self.units // programs)))

    def attend(self, layer: Attention, qkv: Any, out: Any, rows: Rows) -> None:
        count, (h, g, d) = len(rows), (layer.heads, layer.kv_heads, layer.head_dim)
        keys, values = self.cache[layer.layer]
        state = self.run_state()
        cos, sin, q_norm, k_norm = (self.weight(w) for w in (layer.cos, layer.sin, layer.q_norm, layer.k_norm))
        where = (rows.positions, rows.slots, state.tables)
        sizes = dict(HEADS=h, KV_HEADS=g, WIDTH=d)
        size, width = self.settings.page_size, state.tables.shape[1]
        together = power_of_two(h + 2 * g) if interpreted() else 2  # heads to a program
        kernels.rotate_kernel[count, -(-(h + 2 * g) // together)](
            qkv, q_norm, k_norm, cos, sin, *where, keys, values, width, size, layer.eps, **sizes,
            NORM_Q=q_norm is not None, NORM_K=k_norm is not None, ROTARY=cos is not None, BLOCK=power_of_two((d + 1) // 2),
            HEAD_BLOCK=together,
        )  # fmt: skip
        splits = self.splits(count * g)
        partial = self.room("partial", count, h, splits, d)
        weights = self.room("weights", count, h, splits, 2)
        kernels.attention_kernel[count, g, splits](
            qkv, keys, values, *where, partial, weights, width, size, attention.softmax_scale(d), **sizes, SPLITS=splits,
            GROUP=power_of_two(h // g), BLOCK=power_of_two(d), TOKENS=16,
        )  # fmt: skip
        kernels.combine_kernel[count, -(-h // together)](
            partial, weights, rows.positions, out, HEADS=h, WIDTH=d, SPLITS=splits, BLOCK=power_of_two(d), HEAD_BLOCK=together
        )

    def argmax(self, logits: Any, chosen: Any) -> None:
        import torch

        rows, count = logits.shape
        block = 4096
        parts = -(-count // block)
        best = self.room("best", self.settings.slots, parts)
        index = self.room("index", self.settings.slots, parts, dtype=torch.int32)
        kernels.argmax_kernel[rows, parts](logits, best, index, count, PARTS=parts, BLOCK=block)
        kernels.last_argmax_kernel[rows,](best, index, chosen, PARTS=parts, BLOCK=power_of_two(parts))

    def advance(self, state: DecodeState, rows: int) -> None:
        kernels.advance_kernel[1,](
            state.chosen, state.tokens, state.positions, state.counts, state.limits, state.made, state.eos,
            state.stop_at_first_end, rows, state.made.shape[1], BLOCK=power_of_two(rows), STOPS=len(state.eos),
        )  # fmt: skip

    def close(self) -> None:
        super().close()
        self.scratch, self.kept = {}, []
