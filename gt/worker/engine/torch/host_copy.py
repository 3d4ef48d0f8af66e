"""Copies of PyTorch storages outside their device's memory."""

from __future__ import annotations

from typing import Any

import torch

from gt.worker.engine.host_copy import in_file


class TorchCopy:
    """A storage in host memory, or, if the device is the CPU, in a file, with the offset, shape and strides of each tensor."""

    def __init__(self, arrays: list[torch.Tensor]) -> None:
        storage = arrays[0].untyped_storage()
        self.device, self.nbytes = storage.device, storage.nbytes()
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(storage)
        host = torch.frombuffer(in_file(whole.numpy().data), dtype=torch.uint8) if self.device.type == "cpu" else whole.cpu()
        self.forms = [(a.dtype, a.storage_offset(), a.size(), a.stride(), a.is_conj(), a.is_neg()) for a in arrays]
        self.host = host.untyped_storage()
        self.arrays = self._over(self.host)

    def _over(self, storage: torch.UntypedStorage) -> list[torch.Tensor]:
        found = []
        for dtype, offset, size, stride, conjugated, negated in self.forms:
            tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)
            tensor = torch._neg_view(tensor) if negated else tensor
            found.append(tensor.conj() if conjugated else tensor)
        return found

    def back(self) -> list[torch.Tensor]:
        host = torch.empty(0, dtype=torch.uint8).set_(self.host)
        there: Any = host.clone() if self.device.type == "cpu" else host.to(self.device)
        return self._over(there.untyped_storage())
