"""Making a CUDA graph of a trace shorter. Small kernels leave most of a GPU idle, and each waits for the one before it. What is
not on the longest way through a trace (the gradients of weights, while those of activations go on) runs on a second stream,
and what is the same in every call is computed once, before the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from gt.transport.messages import FREE, TraceDef
from gt.worker.programs.codegen import values_read

HELD = 256 << 20  # bytes of operands that may be kept for the second stream before it is waited for
SMALL = 1 << 20  # bytes of a constant that is worth keeping


def off_critical_path(trace: TraceDef, kinds: dict[int, Any], known: Mapping[int, Any]) -> set[int]:
    """Indices of instructions that the last one on the longest way does not depend on. Updates are never among them."""
    body = [(i, ins) for i, ins in enumerate(trace.body) if ins[0] != FREE and ins[1] not in known]
    length: dict[Any, int] = {}  # register -> ops on the longest way to it
    longest: tuple[int, int] = (0, -1)
    for i, ins in body:
        ready = kinds[int(ins[0])]
        row = ready.kind.row
        way = max((length.get(r, 0) for r in values_read(ins, ready)), default=0) + (not row.view)
        length.update((r, way) for r in ins[1 : 1 + ready.outs])
        if not row.updates and way > longest[0]:
            longest = way, i
    wanted: set[Any] = set()
    off: set[int] = set()
    for i, ins in reversed(body):
        ready = kinds[int(ins[0])]
        if i == longest[1] or wanted.intersection(ins[1 : 1 + ready.outs]):
            wanted |= values_read(ins, ready)
        elif not ready.kind.row.updates:
            off.add(i)
    return off


def constants(trace: TraceDef, kinds: dict[int, Any], kernels: Mapping[int, Callable], at: torch.device) -> dict[int, Any]:
    """Values of registers that are the same in every call: of ops that create, from numbers that stay, and of ops on those.
    Results of the trace and what an update takes are not among them, as they are written over."""
    from gt.worker.engine.torch import TORCH

    open_ = {index for places in trace.holes for index, _ in places}
    taken = set(trace.outs)
    for ins in trace.body:
        if ins[0] != FREE and kinds[int(ins[0])].kind.row.updates:
            taken.update(ins[i] for i in kinds[int(ins[0])].tensors)
    found: dict[int, Any] = {}
    for index, ins in enumerate(trace.body):
        if ins[0] == FREE or index in open_ or taken.intersection(ins[1 : 1 + kinds[int(ins[0])].outs]):
            continue
        ready = kinds[int(ins[0])]
        kind, lead = ready.kind, 1 + ready.outs
        if kind.row.updates or not values_read(ins, ready) <= found.keys():
            continue
        if kind.row.family != "create" and not ready.tensors or any(s.nbytes > SMALL for s in kind.outs):
            continue
        operands = list(ins[lead:])
        for i in ready.tensors:
            spec = kind.ins[i - lead]
            known = found.get(int(ins[i]))
            operands[i - lead] = known if known is not None else torch.empty(spec.shape, dtype=TORCH[spec.dtype], device=at)
        made = kernels[int(ins[0])](*operands)
        found.update(zip(map(int, ins[1:lead]), made if ready.outs > 1 else (made,)))
    return found


class SideStream:
    """A second stream. What it reads is kept until it is waited for, since the memory of what ends belongs to the first stream
    at once; what it makes may be used from then on. It begins each time behind all that the first stream was given so far, so
    what it made before and nobody holds any more has been read."""

    def __init__(self, indices: set[int], stream: torch.cuda.Stream) -> None:
        self.indices, self.stream = indices, stream
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
