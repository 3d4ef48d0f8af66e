"""The kernel of a whole step: the programs and batches that it can run, and its launch."""

from __future__ import annotations

import itertools
from typing import Any

from gt.persistent.gpu import structures
from gt.persistent.gpu.module import COOPERATIVE
from gt.persistent.gpu.phases import Product
from gt.persistent.gpu.state import DecodeState
from gt.persistent.program import Activation, Attention, Embed

# As in step_ring.cu and persistent.cu.
TEAM, HELPERS, WARPS, ROWS, STAGE, MOST_STAGES, HELD = 256, 128, 8, 8, 8 * (1024 * 2 + 64), 16, 6
PRODUCT, ATTENTION, HEAD = range(3)
QUERIES = 2 * 2 * structures.GROUP * (128 + 8)  # bytes of the packed queries of an item, as in step_attention.cu
FEWEST_STAGES = 4
MOST_WIDTH = 128  # numbers of a head
BUFFERS = 3  # outputs of phases in turn: the input of a block that writes to one was computed after all blocks had read it


class StepKernel:
    """Activations are words of its own memory here. The executor is a CudaExecutor, which makes one of these."""

    def __init__(self, executor: Any, most_rows: int) -> None:
        import torch

        self.executor, self.most_rows = executor, most_rows
        embed, *phases = executor.phases
        widest = max(phase.output.width for phase in phases[:-1])
        self.words = executor.room("step words", BUFFERS, most_rows, widest, dtype=torch.int64)
        rows = [self._phase(number, phase) for number, phase in enumerate(phases)]
        table = executor.weight(embed.weight)
        rows[0].table, rows[0].table_stride = table.data_ptr(), table.stride(0)
        raw = torch.frombuffer(bytearray(bytes((structures.PhaseRow * len(rows))(*rows))), dtype=torch.uint8)
        self.phases, self.phase_count = raw.to(executor.device), len(rows)
        self.limit = shared_limit(executor)
        executor.module.allow_shared("step_kernel", self.limit)

    @classmethod
    def fitting(cls, executor: Any) -> StepKernel | None:
        """None if the program is no chain of supported phases, or its rows are too wide for shared memory."""
        if executor.settings.dtype != "bfloat16" or not is_chain(executor.phases, executor.program.logits):
            return None
        for rows in range(min(ROWS, executor.settings.slots), 0, -1):
            if shared_layout(executor, rows)[-1] + FEWEST_STAGES * STAGE <= shared_limit(executor):
                return cls(executor, rows)
        return None

    def _phase(self, number: int, phase: Any) -> structures.PhaseRow:
        executor, phases = self.executor, self.executor.phases[1:]
        into, out = (self.words[n % BUFFERS].data_ptr() for n in (number - 1, number))
        if isinstance(phase, Attention):
            row = structures.attention_row(phase, executor.weight, executor.cache)
            return structures.PhaseRow(kind=ATTENTION, input=into, output=out, attention=row)
        weight, norm, bias = (executor.weight(w) for w in (phase.weight, phase.norm, phase.bias))
        is_last = number + 1 == len(phases)
        return structures.PhaseRow(
            kind=HEAD if is_last else PRODUCT,
            width=phase.input.width,
            padded=weight.stride(0),
            outputs=phase.output.width,
            silu=phase.silu,
            in_pairs=not is_last and isinstance(phases[number + 1], Product),
            adds_residual=phase.residual is not None,
            is_residual=phase.output == residual_of(phases),
            eps=phase.eps,
            weight=weight.data_ptr(),
            norm=structures.address(norm),
            bias=structures.address(bias),
            input=into,
            output=out,
        )

    def launch(self, state: DecodeState, rows: int, greedy: bool) -> None:
        import torch

        executor, longs = self.executor, torch.int64
        attentions = executor.program.attentions()
        items = max([rows * a.kv_heads * structures.chunks(a) for a in attentions], default=1)
        splits = power_of_two(max(1, min(structures.MOST_SPLITS, executor.units // items)))
        heads, width = max([a.heads for a in attentions], default=1), max([a.head_dim for a in attentions], default=1)
        partials, residual, ring = shared_layout(executor, rows)
        stages = min(MOST_STAGES, (self.limit - ring) // STAGE)
        step = structures.StepRow(
            phases=self.phases.data_ptr(),
            phase_count=self.phase_count,
            rows=rows,
            row_bits=row_bits(rows),
            pages=structures.pages_row(state.positions, state.slot_of_row, state, executor.settings.page_size),
            sums=executor.room("step sums", rows, heads, splits, width + 2, dtype=longs).data_ptr(),
            splits=splits,
            split_bits=splits.bit_length() - 1,
            run=structures.run_row(state),
            logits=executor.logits.data_ptr(),
            best=executor.room("step best", executor.units, ROWS, 2, dtype=longs).data_ptr(),
            steps=executor.room("steps", 1, dtype=torch.int32).data_ptr(),
            partials=partials,
            residual=residual,
            ring=ring,
            stages=stages,
            greedy=greedy,
        )
        shared = ring + stages * STAGE
        executor.module.launch("step_kernel", [executor.units], TEAM + HELPERS, step, shared=shared, attribute=COOPERATIVE)


def is_chain(phases: list[Any], logits: Activation) -> bool:
    """Whether each phase reads the output of the one before it, and all residuals are one activation, of one width."""
    embed, *rest = phases
    if not isinstance(embed, Embed) or not rest or not isinstance(rest[0], Product) or rest[0].norm is None:
        return False
    if not isinstance(rest[-1], Product) or rest[-1].output != logits or rest[-1].residual is not None:
        return False
    residual = residual_of(rest)
    if residual is not None and residual != embed.output:
        return False
    for before, phase in zip(phases, rest):
        if not isinstance(phase, (Product, Attention)) or phase.input != before.output or phase.input.width % 4:
            return False
        if isinstance(phase, Attention) and (
            phase.head_dim % 8 or phase.head_dim > MOST_WIDTH or isinstance(before, Attention)
        ):
            return False
        if isinstance(phase, Product) and (phase.residual not in (None, residual) or phase.silu and phase.output == residual):
            return False
        if isinstance(phase, Product) and phase.norm is not None and isinstance(before, Attention):
            return False
    return True


def residual_of(phases: list[Any]) -> Activation | None:
    return next((p.residual for p in phases if isinstance(p, Product) and p.residual is not None), None)


def row_bits(rows: int) -> int:
    return (rows - 1).bit_length()


def power_of_two(most: int) -> int:
    return 1 << (most.bit_length() - 1)


def shared_limit(executor: Any) -> int:
    """Bytes of shared memory that a launch may request."""
    import torch

    properties: Any = torch.cuda.get_device_properties(executor.device)
    return properties.shared_memory_per_block_optin - executor.module.static_shared("step_kernel")


def shared_layout(executor: Any, rows: int) -> tuple[int, int, int]:
    """Where in shared memory the parts of tiles, the residual and the ring begin, after the input of a phase."""
    products = [p for p in executor.phases if isinstance(p, Product)]
    inputs = [rows * (executor.weight(p.weight).stride(0) + 32) * 2 for p in products]
    items = [QUERIES + structures.attention_bytes(p, WARPS) for p in executor.phases if isinstance(p, Attention)]
    residual = residual_of(products)
    tiles = 0 if residual is None else -(-residual.width // (ROWS * executor.units))
    a_tile = ROWS * 4 << row_bits(rows)
    sizes = max(*inputs, *items), 2 * HELD * WARPS * a_tile, tiles * a_tile
    partials, own_residual, ring = itertools.accumulate(-(-size // 128) * 128 for size in sizes)
    return partials, own_residual, ring
