"""Making a CUDA graph of a program shorter. Small kernels leave most of a GPU idle, and each waits for the one before it. So
what is not on the critical path (the gradients of weights, while those of activations go on) runs on a second stream, and what
is the same in every call is computed once, before the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gt.program import Instruction
from gt.spec import Spec
from gt.worker.engine.torch.dtypes import TORCH

HELD = 256 << 20  # bytes of operands that may be kept for the second stream before it is waited for


def constant(kernels: Mapping[int, Callable], at: torch.device, ins: Instruction, known: Mapping[int, Any]) -> tuple:
    """What an instruction gives that is the same in every call. Of an operand that is not known only the shape is looked at."""
    operands = [
        o if type(spec) is not Spec
        else known[o] if o in known
        else torch.empty(spec.shape, dtype=TORCH[spec.dtype], device=at)
        for o, spec in zip(ins.operands, ins.kind.ins)
    ]  # fmt: skip
    made = kernels[ins.number](*operands)
    return made if len(ins.results) > 1 else (made,)


class SideStream:
    """A second stream. What it reads is kept until it is waited for, since the memory of what ends belongs to the first stream
    at once; what it makes may be used from then on. It begins each time behind all that the first stream was given so far, so
    what it made before and nobody holds any more has been read."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.held: list[Any] = []
        self.bytes = 0

    def run(self, kernel: Callable[..., Any], *operands: Any) -> Any:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            made = kernel(*operands)
        tensors = [x for x in operands if isinstance(x, torch.Tensor)]
        self.held += tensors
        self.bytes += sum(x.nbytes for x in tensors)
        if self.bytes > HELD:
            self.join()
        return made

    def join(self) -> None:
        torch.cuda.current_stream().wait_stream(self.stream)
        self.held.clear()
        self.bytes = 0
