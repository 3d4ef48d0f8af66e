"""A program as the function of tensors that a CUDA graph records, or that a compiler takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from gt.lazy_import import LazyImport
from gt.ops import Kind
from gt.program import Program
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.graph_chains import GraphChains
from gt.worker.engine.torch.graph_images import images_last, on_images
from gt.worker.engine.torch.joined import joining
from gt.worker.engine.torch.kernels import GATHERED
from gt.worker.engine.torch.lists import alike, of_list
from gt.worker.engine.torch.result_events import ResultEvents
from gt.worker.engine.torch.side_stream import SideStream, constant
from gt.worker.programs.codegen import NONE, KernelTable, straight_line
from gt.worker.programs.passes.constants import fold_constants
from gt.worker.programs.passes.early_collectives import early_collectives
from gt.worker.programs.passes.fuse_lists import fuse_lists
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.joined_pieces import join_pieces
from gt.worker.programs.passes.lists_in_a_row import in_a_row
from gt.worker.programs.passes.side_stream import off_critical_path
from gt.worker.programs.passes.sums_in_norms import fuse_sums
from gt.worker.programs.passes.sums_of_pieces import write_pieces
from gt.worker.programs.passes.unused import without_unused

graph_kernels = LazyImport("gt.worker.engine.torch.graph_kernels")  # imports Triton


def capturable(
    program: Program, kinds: dict[int, Any], engine: Any, in_place: bool = True,
    stage: Callable[[str, Program], Program] = lambda name, program: program,
    collectives: Mapping[int, Callable[..., Any]] = NONE, events: ResultEvents | None = None,
    chains: GraphChains | None = None,
) -> Callable[..., tuple]:  # fmt: skip
    """A program as a function of tensors alone: holes are 0-d tensors. With `in_place`, updates of many parameters run as one
    fused call in place; without, all ops are in a form that a compiler can fuse. `collectives` has the kernels of those,
    `events` are recorded behind small results, `chains` are the graph's."""
    own = {n: ready for n, ready in kinds.items() if not ready.kind.row.collective}
    kernels = {**tensor_kernels(program, own, engine, in_place), **collectives}
    if not in_place:
        return straight_line(program, KernelTable(kernels), flat=True)
    program = stage("without unused ops", without_unused(program))
    program = stage("updates fused", fuse_updates(program, lambda kind: where_it_lies(kind) is not None))
    program = stage("constants folded", fold_constants(program, partial(constant, kernels, engine.at)))
    program = stage("pieces joined", join_pieces(program))
    kernels |= {n: joining(engine.plain(kind)) for n, kind in program.kinds.items() if n not in kernels and len(kind.ins) > 1}
    kernels |= {n: engine.plain(kind) for n, kind in program.kinds.items() if n not in kernels}
    program = stage("pieces written", write_pieces(program))
    over = {ins.number: engine.writing(ins.kind) for ins in program.instructions if ins.in_place}
    side, marks = None, NONE
    if engine.at.type == "cuda":
        program = stage("sums in norms", fuse_sums(program, lambda kind: own_kernel(kind) is not None))
        own = {ins.number: own_kernel(ins.kind) for ins in program.instructions if not (ins.parts or ins.holes or ins.in_place)}
        kernels |= {n: run for n, run in own.items() if run is not None}
        if images := images_last(program, engine.at):
            kernels |= {n: on_images(kernels[n]) for n, kind in program.kinds.items() if kind.row.images}
        if chains is not None:
            program, fused = chains.applied(program, bool(images), stage)
            kernels |= fused
        program = stage("lists in a row", in_a_row(program, alike))
        program = stage("lists fused", fuse_lists(program, alike))
        program = stage("on two streams", off_critical_path(early_collectives(program)))
        side = SideStream(engine.streams.pair()[1], torch.cuda.Stream(engine.at) if collectives else None)
        marks = events.marks(program, side.stream) if events is not None else NONE
    return straight_line(program, KernelTable(kernels, over, of_many), flat=True, side=side, marks=marks)


def tensor_kernels(program: Program, kinds: dict[int, Any], engine: Any, in_place: bool) -> dict[int, Callable[..., Any]]:
    """Kernels by number of the kind, which take 0-d tensors for holes."""
    open_ = {part.number for ins in program.instructions for part in ins.parts or (ins,) if part.holes}
    kernels = {}
    for number, ready in kinds.items():
        kernel = kernels[number] = engine.plain(ready.kind)
        takes_tensors = in_place and getattr(getattr(kernel, "func", kernel), "takes_tensors", False)
        if number in open_ and not takes_tensors:
            kernels[number] = _cast(engine.generic(ready.kind), ready.kind)
    return kernels


def own_kernel(kind: Kind) -> Callable[..., Any] | None:
    """The kernel that graphs alone have for a kind; None without Triton."""
    return None if importlib.util.find_spec("triton") is None else graph_kernels.kernel(kind)


def where_it_lies(kind: Kind) -> Callable[..., Any] | None:
    """A fused kernel for many updates that overwrites their operands, even if others hold them."""
    run = GATHERED.get(kind.row.name)
    return None if run is None else partial(run, **kind.settings)


def of_many(kind: Kind) -> Callable[..., Any] | None:
    """A fused kernel for updates, or for a list of instructions that are alike."""
    return where_it_lies(kind) or of_list(kind)


def _cast(run: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    """A kernel that takes 0-d tensors as numbers, with results in the dtypes that Python numbers would give. Integers in
    floating point arithmetic are doubles, as Python's would be; integers that are offsets stay integers."""
    dtypes = tuple(TORCH[s.dtype] for s in kind.outs)
    computed = kind.row.pointwise or kind.row.updates
    widen = computed and all(t.is_floating_point for t in dtypes)
    whole = [i for i, s in enumerate(kind.ins) if s is int] if widen else []

    def kernel(*operands: Any) -> Any:
        given = list(operands)
        for i in whole:
            given[i] = given[i].double() if isinstance(given[i], torch.Tensor) else given[i]
        made = run(*given)
        if len(dtypes) == 1:
            return made.to(dtypes[0])
        return tuple(m.to(t) for m, t in zip(made, dtypes))

    return kernel
