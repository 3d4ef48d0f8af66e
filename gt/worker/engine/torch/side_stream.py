"""Shortens the CUDA graph of a program. Small kernels leave most of a GPU idle, and each waits for the one before. So
instructions off the critical path (the gradients of weights, while those of activations continue) run on a second stream,
and constants are computed once, before the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gt.program import Instruction
from gt.spec import Spec
from gt.worker.engine.torch.dtypes import TORCH

HELD = 256 << 20  # most bytes of operands that are kept for the second stream before a join


def constant(kernels: Mapping[int, Callable], at: torch.device, ins: Instruction, known: Mapping[int, Any]) -> tuple:
    """The results of an instruction that are the same in every call. It uses only the shape of unknown operands."""
    operands = [
        o if type(spec) is not Spec
        else known[o] if o in known
        else torch.empty(spec.shape, dtype=TORCH[spec.dtype], device=at)
        for o, spec in zip(ins.operands, ins.kind.ins)
    ]  # fmt: skip
    made = kernels[ins.number](*operands)
    return made if len(ins.results) > 1 else (made,)


class SideStream:
    """A second stream, and a third one for collectives, which wait for both others; only kernels that use their results wait
    for them. Operands are kept until the join, since the memory of a freed tensor is reused by the first stream at once;
    results may be used after the join. Each kernel waits for all work of the first stream so far, so memory of earlier, freed
    results has been read."""

    def __init__(self, stream: torch.cuda.Stream, collectives: torch.cuda.Stream | None = None) -> None:
        self.stream, self.collectives = stream, collectives
        self.received: set[int] = set()  # addresses of results of collectives
        self.sent = False  # whether there were collectives since the join
        self.held: list[Any] = []
        self.bytes = 0

    def run(self, kernel: Callable[..., Any], *operands: Any) -> Any:
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        collective = self.collectives is not None and hasattr(kernel, "collective")
        stream, other = (self.collectives, self.stream) if collective else (self.stream, self.collectives)
        assert stream is not None
        stream.wait_stream(torch.cuda.current_stream())
        if other is not None and (collective or not self.received.isdisjoint(map(_address, tensors))):
            stream.wait_stream(other)
        with torch.cuda.stream(stream):
            made = kernel(*operands)
        if collective:
            self.sent = True
            self.received.update(map(_address, made if isinstance(made, tuple) else (made,)))
        self.held += tensors
        self.bytes += sum(x.nbytes for x in tensors)
        if self.bytes > HELD:
            self.join()
        return made

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)
        if self.sent and self.collectives is not None:
            torch.cuda.current_stream().wait_stream(self.collectives)
            self.sent = False
            self.received.clear()
        self.held.clear()
        self.bytes = 0


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
