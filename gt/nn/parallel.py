"""PyTorch's wrappers for several devices. Here they only call their module: signals distribute work (docs/sharding.md)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from gt.import_paths import add_files
from gt.nn.module import Module


class DataParallel(Module):
    """`model.module` is the model, as scripts expect. One script drives all workers, so there is nothing to copy or gather."""

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class DistributedDataParallel(DataParallel):
    """Rank 0 of 1: gradients are already complete."""

    def no_sync(self) -> Any:
        """Without effect: gradients accumulate until `zero_grad()` in any case."""
        return nullcontext()


add_files(globals(), {"data_parallel": "DataParallel", "distributed": "DistributedDataParallel"})
