"""PyTorch's executor on the CPU with every product given to one library: MKL, or oneDNN (mkldnn)."""

from __future__ import annotations

from typing import Any

from gt.persistent.executor import ExecutorSettings
from gt.persistent.program import DecodeProgram, Linear
from gt.persistent.torch_executor import TorchExecutor


class CpuOnly(TorchExecutor):
    dtypes = ("float32",)
    options = ("num_workers", "world_size")

    @classmethod
    def chosen_device(cls, device: str | None) -> str:
        return "cpu"


class MKLExecutor(CpuOnly):
    """Torch's own products are MKL's where oneDNN is switched off."""

    def linear(self, layer: Linear, x: Any) -> Any:
        import torch

        # Not `mkldnn.flags`, which sets all its flags and warns about flags that this build of torch lacks.
        before = torch.backends.mkldnn.set_flags(False)
        try:
            return super().linear(layer, x)
        finally:
            torch.backends.mkldnn.set_flags(before[0])


class OneDNNExecutor(CpuOnly):
    """Weights lie in oneDNN's own layout, and its linear op has no other implementation."""

    def __init__(self, program: DecodeProgram, settings: ExecutorSettings) -> None:
        super().__init__(program, settings)
        numbers = {layer.weight.number for layer in program.layers if isinstance(layer, Linear)}
        self.packed = {number: self.weights[number].to_mkldnn() for number in numbers}

    def linear(self, layer: Linear, x: Any) -> Any:
        import torch

        bias = None if layer.bias is None else self.weight(layer.bias).to_mkldnn()
        return torch.ops.aten.mkldnn_linear(x.to_mkldnn(), self.packed[layer.weight.number], bias).to_dense()

    def close(self) -> None:
        super().close()
        self.packed = {}
