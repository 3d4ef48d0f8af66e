"""Execution of a program: the interface of every backend, and the loop over layers for backends in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gt.persistent.batch import DecodeBatch
from gt.persistent.program import Activation, AllReduce, Attention, DecodeProgram, Embed, Linear, RMSNorm, SiluMul
from gt.persistent.requests import Scheduler
from gt.persistent.sampling import choose, uniform
from gt.persistent.weights import as_float32


@dataclass(frozen=True)
class ExecutorSettings:
    """The settings of an executor other than the program."""

    pages: int
    page_size: int
    slots: int
    max_tokens: int
    max_length: int
    num_workers: int | None
    dtype: str
    device: str | None
    use_cutlass_kernel: bool = False
    world_size: int = 1
    rank: int = 0


class Executor:
    """Runs a program's layers one by one. A backend computes each."""

    dtypes: tuple[str, ...] = ("float32",)
    options: tuple[str, ...] = ()  # the supported ones of num_workers, device, use_cutlass_kernel and world_size
    keeps_tensors = False  # whether it takes weights as torch tensors on their device
    runs_steps = False  # whether generate takes more than one step at a time

    @classmethod
    def reason_unavailable(cls) -> str | None:
        """The reason why this executor cannot run here, or None."""
        return None

    @classmethod
    def check(cls, backend: str, dtype: str, options: dict[str, Any]) -> None:
        """Raise ValueError for options that this backend does not support. None: not requested."""
        if dtype not in cls.dtypes:
            raise ValueError(f"backend {backend!r} cannot compute in {dtype}: expected {', '.join(cls.dtypes)}")
        for name, value in options.items():
            if value is not None and name not in cls.options:
                able = ", ".join(cls.options) or "none of these options"
                raise ValueError(f"backend {backend!r} does not support {name}={value!r}: it takes {able}")

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        self.program, self.settings = program, settings
        if not self.keeps_tensors:
            program.weights = [as_float32(weight) for weight in program.weights]
        attentions = program.attentions()
        shape = (0, 0) if not attentions else (attentions[0].kv_heads, attentions[0].head_dim)
        # (layers, keys and values, pages, page_size, kv heads, head_dim)
        self.cache_shape = (len(attentions), 2, settings.pages, settings.page_size, *shape)

    def forward(self, batch: DecodeBatch) -> np.ndarray:
        """Logits of the wanted rows, (wanted, vocabulary) float32. The cache then holds all tokens of the batch."""
        values: dict[int, Any] = {}
        logits = self.program.logits
        assert logits is not None
        for layer in self.program.layers:
            if layer is self.program.layers[-1] and isinstance(layer, Linear) and len(batch.wanted) < len(batch.tokens):
                # Only the wanted rows go through the head, which is the largest product of many models.
                values = {number: self.rows(value, batch.wanted) for number, value in values.items()}
                return self.to_numpy(self.run(layer, values, batch))
            values[layer.output.number] = self.run(layer, values, batch)
        result = self.to_numpy(values[logits.number])
        return result if len(batch.wanted) == len(result) else result[batch.wanted]

    def generate(self, scheduler: Scheduler, steps: int, made: dict[int, list[int]]) -> int:
        """Run the steps that the scheduler has prepared: a token for every active request each. Returns their number."""
        for batch, owners in scheduler.batches():
            logits = self.forward(batch)
            for span in batch.spans:
                request = scheduler.slots[span.slot]
                assert request is not None
                request.cached = span.length
            for row, request in zip(logits, owners):
                token = choose(row, request.sampling, uniform(request.seed, len(request.tokens)))
                scheduler.append(request, token)
                made.setdefault(request.id, []).append(token)
        return 1

    def run(self, layer: Any, values: dict[int, Any], batch: DecodeBatch) -> Any:
        def value(tensor: Activation) -> Any:
            return values[tensor.number]

        match layer:
            case Embed():
                return self.embed(layer, batch.tokens)
            case RMSNorm():
                return self.rmsnorm(layer, value(layer.input))
            case Linear():
                y = self.linear(layer, value(layer.input))
                return y if layer.residual is None else y + value(layer.residual)
            case Attention():
                return self.attention(layer, value(layer.input), batch)
            case SiluMul():
                return self.silu_mul(value(layer.input))
            case AllReduce():
                return self.allreduce(value(layer.input))
        raise TypeError(f"no layer {layer!r}")

    def embed(self, layer: Embed, tokens: np.ndarray) -> Any:
        raise NotImplementedError

    def rmsnorm(self, layer: RMSNorm, x: Any) -> Any:
        raise NotImplementedError

    def linear(self, layer: Linear, x: Any) -> Any:
        raise NotImplementedError

    def attention(self, layer: Attention, qkv: Any, batch: DecodeBatch) -> Any:
        raise NotImplementedError

    def silu_mul(self, x: Any) -> Any:
        raise NotImplementedError

    def allreduce(self, x: Any) -> Any:
        """The sum over all ranks, of which there is one by default."""
        return x

    def rows(self, x: Any, wanted: np.ndarray) -> Any:
        raise NotImplementedError

    def to_numpy(self, x: Any) -> np.ndarray:
        raise NotImplementedError

    def fill_pages(self, pages: list[int], value: float) -> None:
        """Overwrite pages, so that a test detects reads of freed pages."""
        raise NotImplementedError

    def close(self) -> None:
        """Free weights and cache."""
        self.program = DecodeProgram()
