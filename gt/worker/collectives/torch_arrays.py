"""PyTorch tensors as the arrays of transports, and their conversion from and to an engine's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gt.spec import DType, Shape, Spec, bool_, int16
from gt.worker.collectives.mail_transport import MailTransport
from gt.worker.collectives.ops import Work
from gt.worker.collectives.peer_memory import COMBINE
from gt.worker.engine import Engine
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.engine import TorchEngine


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes, so that data of every dtype is moved alike. A single element counts as contiguous with any
    stride, so the stride is given explicitly."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class TorchArrays:
    """PyTorch's tensors: see `Arrays`. NCCL moves them on the engine's device; `alone`: no other value shares the memory of the
    collective's only operand."""

    def __init__(self, engine: Engine, nccl: bool, alone: bool) -> None:
        self.engine, self.alone = engine, alone
        self.at = engine.at if nccl and isinstance(engine, TorchEngine) else torch.device("cpu")

    def moved(self, array: Any, spec: Spec) -> torch.Tensor:
        if not isinstance(array, torch.Tensor):
            data = self.engine.store(array, spec)
            flat = torch.frombuffer(bytearray(data), dtype=TORCH[spec.dtype]) if spec.numel else torch.empty(0)
            return flat.to(TORCH[spec.dtype]).reshape(spec.shape)
        return array.detach().to(self.at).contiguous()

    def result(self, array: torch.Tensor, spec: Spec) -> Any:
        if isinstance(self.engine, TorchEngine):
            return array.reshape(spec.shape).to(self.engine.at)
        host = as_bytes(array.contiguous()).numpy().data if spec.numel else memoryview(b"")
        return self.engine.load(host, spec, True)

    def blank(self, shape: Shape, dtype: DType) -> torch.Tensor:
        return torch.empty(shape, dtype=TORCH[dtype], device=self.at)

    def owned(self, array: torch.Tensor) -> torch.Tensor:
        storage = array.untyped_storage()
        # References of the table's tensor, of `array` and of `storage`; a view adds one.
        owners = torch._C._storage_Use_Count(storage._cdata)
        alone = self.alone and owners <= 3 and storage.nbytes() == array.numel() * array.element_size()
        return array if alone else array.clone()

    def reducible(self, array: torch.Tensor, dtype: DType) -> tuple[torch.Tensor, Callable[[Any], Any]]:
        if dtype.is_complex:  # a complex sum is a sum of its parts; complex numbers have no other reduction
            return torch.view_as_real(array), torch.view_as_complex
        if dtype is bool_ or dtype is int16:  # Gloo cannot reduce them
            return array.to(torch.int32), lambda reduced: reduced.to(TORCH[dtype])
        return array, lambda reduced: reduced

    def contiguous(self, array: torch.Tensor) -> torch.Tensor:
        return array.contiguous()

    def joined(self, arrays: Sequence[torch.Tensor], axis: int = 0) -> torch.Tensor:
        return torch.cat(list(arrays), axis)

    def as_bytes(self, array: torch.Tensor) -> torch.Tensor:
        return as_bytes(array)

    def as_elements(self, data: torch.Tensor, shape: Shape, dtype: DType) -> torch.Tensor:
        return data.view(TORCH[dtype]).reshape(shape)


class TorchMail:
    """The mail transport for PyTorch's tensors, between the first members of hosts: see `Transport`."""

    way = "mail"

    def __init__(self, mail: MailTransport) -> None:
        self.mail = mail

    def reduce(self, whole: torch.Tensor, how: str) -> Work:
        terms = whole.new_empty(len(self.mail.group), whole.numel())
        work = self.gather(as_bytes(terms), as_bytes(whole))
        return _Then(work, lambda: whole.copy_(functools.reduce(COMBINE[how], terms.unbind())))

    def gather(self, out: torch.Tensor, part: torch.Tensor) -> Work:
        return self.mail.gather(out.numpy(), part.numpy())

    def spread(self, tensor: torch.Tensor) -> Work:
        return self.mail.spread(tensor.numpy())

    def reduce_first(self, whole: torch.Tensor, how: str) -> Work:
        return self.reduce(whole, how)

    def swap(self, out: torch.Tensor, data: torch.Tensor, takes: list[int], sends: list[int]) -> Work:
        return self.mail.swap(out.numpy(), data.numpy(), takes, sends)

    def scatter(self, data: torch.Tensor, sizes: list[int], how: str) -> tuple[Work, Callable[[], Any]]:
        whole, start = data.clone(), sum(sizes[: self.mail.rank])
        return self.reduce(whole, how), lambda: whole[start : start + sizes[self.mail.rank]]

    def end(self) -> None:
        """Nothing to do."""


class _Then:
    """Work with a function to call at its end."""

    def __init__(self, work: Work, then: Callable[[], Any]) -> None:
        self.work, self.then = work, then

    def done(self) -> bool:
        return self.work.done()

    def wait(self) -> None:
        self.work.wait()
        self.then()
