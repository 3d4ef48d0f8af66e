"""The kernel that takes a whole step: which programs and batches it can run, and its launch."""

from __future__ import annotations

from typing import Any

from gt.persistent.gpu import structures
from gt.persistent.gpu.phases import Product
from gt.persistent.gpu.state import DecodeState
from gt.persistent.program import Activation, Attention, Embed

# As in persistent.cu.
TEAM, WARPS, ROWS, STAGE, MOST_STAGES, AT_ONCE = 256, 8, 8, 8 * (1024 * 2 + 64), 16, 8
EMBED, PRODUCT, ATTENTION, HEAD = range(4)
FEWEST_STAGES = 4


class StepKernel:
    """Activations are float32 here, and memory of its own. The executor is a CudaExecutor, which makes one of these."""

    def __init__(self, executor: Any, most_rows: int) -> None:
        import torch

        self.executor, self.most_rows = executor, most_rows
        self.buffers: dict[int, Any] = {}
        rows = [self._phase(phase) for phase in executor.phases]
        table = (structures.PhaseRow * len(rows))(*rows)
        raw = torch.frombuffer(bytearray(bytes(table)), dtype=torch.uint8)
        self.phases, self.phase_count = raw.to(executor.device), len(rows)
        self.static = executor.module.static_shared("step_kernel")
        self.limit = shared_limit(executor.device)
        executor.module.allow_shared("step_kernel", self.limit - self.static)

    @classmethod
    def fitting(cls, executor: Any) -> StepKernel | None:
        """None for a program with layers that the kernel does not know, or rows too wide for its shared memory."""
        phases, logits = executor.phases, executor.program.logits
        if executor.settings.dtype != "bfloat16" or not isinstance(phases[-1], Product) or phases[-1].output != logits:
            return None
        if not all(isinstance(phase, (Embed, Product, Attention)) for phase in phases):
            return None
        products = [phase for phase in phases if isinstance(phase, Product)]
        if any(p.input.width % 4 or p.norm is not None and p.input.width > 4 * AT_ONCE * TEAM for p in products):
            return None
        limit = shared_limit(executor.device) - executor.module.static_shared("step_kernel")
        for rows in range(min(ROWS, executor.settings.slots), 0, -1):
            if room(phases, executor.weights, rows) + FEWEST_STAGES * STAGE <= limit:
                return cls(executor, rows)
        return None

    def buffer(self, activation: Activation | None) -> int | None:
        import torch

        if activation is None:
            return None
        if activation == self.executor.program.logits:
            return self.executor.logits.data_ptr()
        if activation.number not in self.buffers:
            shape = (self.most_rows, activation.width)
            self.buffers[activation.number] = torch.zeros(shape, dtype=torch.float32, device=self.executor.device)
        return self.buffers[activation.number].data_ptr()

    def _phase(self, phase: Any) -> structures.PhaseRow:
        executor = self.executor
        if isinstance(phase, Attention):
            row = structures.attention_row(phase, executor.weight, executor.cache)
            return structures.PhaseRow(
                kind=ATTENTION, input=self.buffer(phase.input), output=self.buffer(phase.output), attention=row
            )
        weight = executor.weight(phase.weight)
        common = dict(weight=weight.data_ptr(), padded=weight.stride(0), output=self.buffer(phase.output))
        if isinstance(phase, Embed):
            return structures.PhaseRow(kind=EMBED, outputs=phase.output.width, **common)
        norm, bias = (executor.weight(w) for w in (phase.norm, phase.bias))
        return structures.PhaseRow(
            kind=HEAD if phase is executor.phases[-1] else PRODUCT,
            width=phase.input.width,
            outputs=phase.output.width,
            silu=phase.silu,
            eps=phase.eps,
            norm=structures.address(norm),
            bias=structures.address(bias),
            input=self.buffer(phase.input),
            residual=self.buffer(phase.residual),
            **common,
        )

    def launch(self, state: DecodeState, rows: int, greedy: bool) -> None:
        import torch

        executor, ints = self.executor, torch.int32
        attentions = executor.program.attentions()
        items = max([rows * a.kv_heads * structures.chunks(a) for a in attentions], default=1)
        splits = max(1, min(structures.MOST_SPLITS, executor.units // items))
        heads, width = max([a.heads for a in attentions], default=1), max([a.head_dim for a in attentions], default=1)
        partials = structures.PartialsRow(
            executor.room("step sums", rows, heads, splits, width).data_ptr(),
            executor.room("step weights", rows, heads, splits, 2).data_ptr(),
            executor.room("step arrived", rows, heads, dtype=ints).data_ptr(),
            splits,
        )
        before_ring = room(executor.phases, executor.weights, rows)
        stages = min(MOST_STAGES, (self.limit - self.static - before_ring) // STAGE)
        step = structures.StepRow(
            self.phases.data_ptr(),
            self.phase_count,
            rows,
            structures.pages_row(state.positions, state.slot_of_row, state, executor.settings.page_size),
            partials,
            structures.run_row(state),
            executor.room("step best", executor.units, rows).data_ptr(),
            executor.room("step index", executor.units, rows, dtype=ints).data_ptr(),
            executor.room(f"step barrier {rows} {greedy}", 2, dtype=ints).data_ptr(),
            before_ring,
            stages,
            int(greedy),
        )
        shared = before_ring + stages * STAGE
        executor.module.launch("step_kernel", [executor.units], TEAM + 32, step, shared=shared, cooperative=True)


def shared_limit(device: Any) -> int:
    """Bytes of shared memory that a block may have."""
    import torch

    properties: Any = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin


def room(phases: list[Any], weights: list[Any], rows: int) -> int:
    """Bytes of shared memory for the inputs of a product, or for attention."""
    products = [rows * (weights[p.weight.number].stride(0) + 32) * 2 for p in phases if isinstance(p, Product)]
    width = max([p.head_dim for p in phases if isinstance(p, Attention)], default=0)
    attention = structures.attention_bytes(width, WARPS)
    return -(-max(*products, attention) // 128) * 128
