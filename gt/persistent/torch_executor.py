"""The executor in PyTorch, on any device, in float32 or bfloat16."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from operator import matmul
from typing import Any, NamedTuple

import numpy as np

from gt.lazy_import import LazyImport
from gt.persistent import attention
from gt.persistent.batch import DecodeBatch, TokenSpan
from gt.persistent.executor import Executor, ExecutorSettings
from gt.persistent.program import Attention, DecodeProgram, Embed, Linear, RMSNorm, Weight

narrow_products = LazyImport("gt.worker.engine.torch.narrow_products")  # imports PyTorch


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    left, right = x.chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat([left * c - right * s, right * c + left * s], dim=-1)


def join_group(settings: ExecutorSettings) -> None:
    """Check torch.distributed's default group; if there is none, create it from MASTER_ADDR and MASTER_PORT."""
    if settings.world_size == 1:
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=settings.rank, world_size=settings.world_size)
    found = (dist.get_rank(), dist.get_world_size())
    if found != (settings.rank, settings.world_size):
        raise ValueError(
            f"mpi_rank {settings.rank} of world_size {settings.world_size} was requested, but torch.distributed's group has "
            f"rank {found[0]} of {found[1]}"
        )


class CacheSlots(NamedTuple):
    """The positions of a span's tokens in the cache, and the mask of its rows."""

    page: Any  # (rows,)
    offset: Any  # (rows,)
    all_pages: Any  # (pages of the request,)
    hidden: Any  # (rows, length)


class TorchExecutor(Executor):
    """num_workers is torch's number of threads during a call, on the CPU."""

    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    options: tuple[str, ...] = ("num_workers", "device", "world_size")
    keeps_tensors = True

    @classmethod
    def check(cls, backend: str, dtype: str, options: dict[str, Any]) -> None:
        super().check(backend, dtype, options)
        device = cls.chosen_device(options["device"])
        if options["num_workers"] is not None and not device.startswith("cpu"):
            raise ValueError(f"backend {backend!r} does not support num_workers on {device}, only on cpu")

    @classmethod
    def chosen_device(cls, device: str | None) -> str:
        import torch

        return device or ("cuda" if torch.cuda.is_available() else "cpu")

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        import torch

        super().__init__(program, settings)
        join_group(settings)
        self.device = torch.device(self.chosen_device(settings.device))
        self.dtype = getattr(torch, settings.dtype)
        self.widens = self.device.type == "cpu" and narrow_products.is_slow(settings.dtype)  # products are taken in float32
        tables = {w.number for a in program.attentions() for w in (a.cos, a.sin) if w is not None}
        self.weights = [
            torch.as_tensor(array).to(self.device, torch.float32 if number in tables else self.dtype)
            for number, array in enumerate(program.weights)
        ]
        program.weights = []  # replaced by the copies above
        self.cache: Any = torch.zeros(self.cache_shape, dtype=self.dtype, device=self.device)

    @contextlib.contextmanager
    def threads(self) -> Iterator[None]:
        import torch

        if self.settings.num_workers is None:
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(self.settings.num_workers)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def forward(self, batch: DecodeBatch) -> np.ndarray:
        import torch

        with torch.inference_mode(), self.threads():
            rows = [attention.rotary_position(p) for p in batch.positions().tolist()]
            self.rotary_rows = torch.tensor(rows, device=self.device)
            self.slots = [self.slots_of(span) for span in batch.spans]
            return super().forward(batch)

    def slots_of(self, span: TokenSpan) -> CacheSlots:
        """The positions of a span's tokens; the same in every layer."""
        import torch

        size, held = self.settings.page_size, attention.held_in_pages(span.length, self.settings.page_size)
        pages = torch.tensor(span.pages, device=self.device)
        positions = torch.arange(span.position, span.length, device=self.device)
        seen = torch.tensor([attention.visible(p) for p in range(span.position, span.length)], device=self.device)
        hidden = torch.arange(sum(held), device=self.device) >= seen[:, None]
        return CacheSlots(pages[positions // size], positions % size, pages[: len(held)], hidden)

    def weight(self, weight: Weight) -> Any:
        return self.weights[weight.number]

    def embed(self, layer: Embed, tokens: np.ndarray) -> Any:
        import torch

        return self.weight(layer.weight)[torch.from_numpy(tokens).to(self.device)]

    def normed(self, x: Any, weight: Weight | None, eps: float) -> Any:
        """The mean of squares is taken in float32, for weights of any dtype."""
        if weight is None:
            return x
        wide = x.float()
        return self.weight(weight) * (wide * (wide * wide).mean(-1, keepdim=True).add(eps).rsqrt()).to(x.dtype)

    def rmsnorm(self, layer: RMSNorm, x: Any) -> Any:
        return self.normed(x, layer.weight, layer.eps)

    def linear(self, layer: Linear, x: Any) -> Any:
        import torch

        bias = None if layer.bias is None else self.weight(layer.bias)
        return self.product(torch.nn.functional.linear, x, self.weight(layer.weight), bias)

    def product(self, run: Callable[..., Any], *operands: Any) -> Any:
        if not self.widens:
            return run(*operands)
        return run(*[None if o is None else o.float() for o in operands]).to(self.dtype)

    def silu_mul(self, x: Any) -> Any:
        import torch

        gate, up = x.chunk(2, dim=1)
        return torch.nn.functional.silu(gate) * up

    def attention(self, layer: Attention, qkv: Any, batch: DecodeBatch) -> Any:
        import torch

        h, g, d = layer.heads, layer.kv_heads, layer.head_dim
        q, k, v = qkv.view(len(qkv), h + 2 * g, d).split([h, g, g], dim=1)
        q, k = self.normed(q, layer.q_norm, layer.eps), self.normed(k, layer.k_norm, layer.eps)
        if layer.cos is not None and layer.sin is not None:
            cos, sin = (self.weight(table)[self.rotary_rows].to(q.dtype) for table in (layer.cos, layer.sin))
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        outputs = []
        for span, slots in zip(batch.spans, self.slots):
            rows_of = slice(span.first, span.first + span.rows)
            keys, values = self.append(layer.layer, k[rows_of], v[rows_of], slots)
            outputs.append(self.attend(layer, q[rows_of], keys, values, slots.hidden))
        return torch.cat(outputs)

    def append(self, layer: int, k: Any, v: Any, slots: CacheSlots) -> list[Any]:
        """Write new keys and values to their pages; returns those of the whole request, (length, kv heads, head_dim)."""
        found = []
        for cache, new in zip(self.cache[layer], (k, v)):
            cache[slots.page, slots.offset] = new
            found.append(cache[slots.all_pages].flatten(0, 1)[: slots.hidden.shape[1]])
        return found

    def attend(self, layer: Attention, q: Any, keys: Any, values: Any, hidden: Any) -> Any:
        groups = attention.head_groups(layer.heads, layer.kv_heads)
        keys, values = keys[:, groups].permute(1, 2, 0), values[:, groups].transpose(0, 1)
        scores = self.product(matmul, q.transpose(0, 1), keys).float() * attention.softmax_scale(
            layer.head_dim
        )  # (heads, rows, length)
        likely = scores.masked_fill(hidden, float("-inf")).softmax(-1).to(values.dtype)
        return self.product(matmul, likely, values).transpose(0, 1).reshape(len(q), -1)

    def allreduce(self, x: Any) -> Any:
        import torch.distributed

        if self.settings.world_size == 1:
            return x
        total = x.float()  # a sum of 16-bit numbers would be rounded at every rank
        torch.distributed.all_reduce(total)
        return total.to(x.dtype)

    def rows(self, x: Any, wanted: np.ndarray) -> Any:
        import torch

        return x[torch.from_numpy(wanted).to(self.device)]

    def to_numpy(self, x: Any) -> np.ndarray:
        return x.float().cpu().numpy()

    def fill_pages(self, pages: list[int], value: float) -> None:
        self.cache[:, :, pages] = value

    def close(self) -> None:
        super().close()
        self.weights, self.cache = [], None


class MPSExecutor(TorchExecutor):
    """PyTorch on the GPU of Apple's processors."""

    options = ("device",)

    @classmethod
    def chosen_device(cls, device: str | None) -> str:
        return device or "mps"
