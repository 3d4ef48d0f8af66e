"""The chains of one CUDA graph. It is recorded with the kernels that are compiled by then, and again when the others are."""

from __future__ import annotations

import importlib.util
from typing import Any

from gt import environment
from gt.lazy_import import LazyImport
from gt.ops import Kind
from gt.program import Instruction, Program
from gt.worker.engine.torch import chain_source
from gt.worker.programs.passes.chains import CHAIN, fuse_chains

chain_kernels = LazyImport("gt.worker.engine.torch.chain_kernels")  # imports Triton
IMAGES = 4  # axes of images, which may lie with their channels last


class GraphChains:
    """`lacking` are kernels of the last recording's chains that were not compiled. A graph that is recorded together with
    others' `waits` for none."""

    def __init__(self, engine: Any, waits: bool) -> None:
        self.engine, self.waits = engine, waits
        self.asked: list[Any] = []  # the kernels of all chains of the last recording; None where there are too many
        self.lacking: list[Any] = []
        self.chains = self.links = 0  # of the last recording

    def fuse(self, program: Program, images: bool) -> tuple[Program, dict[int, Any]]:
        """The program with chains, and their kernels by number. Views are left alone, and in a program with `images` that have
        their channels last all ops on such tensors that read other places: a chain's kernel wants its tensors packed."""
        self.asked, self.lacking, self.chains, self.links = [], [], 0, 0
        if not environment.CHAINS.value() or importlib.util.find_spec("triton") is None:
            return program, {}
        if self.engine.chains is None:
            self.engine.chains = chain_kernels.ChainKernels(self.engine.at)
        views = {r for ins in program.instructions if _is_view(ins) for r in ins.results}

        def joins(ins: Instruction) -> bool:
            if not views.isdisjoint(ins.values) or not chain_source.joins(ins):
                return False
            whole = all(spec.ndim == 0 or spec.shape == ins.made[0].shape for spec in ins.specs)
            return not images or ins.made[0].ndim != IMAGES or whole and chain_source.at_own_place(ins)

        fused = fuse_chains(program, joins, chain_source.at_own_place, self._has_kernel)
        chains = [ins for ins in fused.instructions if ins.op is CHAIN]
        self.chains, self.links = len(chains), sum(len(ins.kind.settings["chain"].links) for ins in chains)
        return fused, {ins.number: self.engine.chains.get(ins.kind) for ins in chains}

    def _has_kernel(self, kind: Kind) -> bool:
        self.asked.append(kernel := self.engine.chains.get(kind))
        if kernel is not None and self.waits and not kernel.is_done:
            self.lacking.append(kernel)
        return kernel is not None and kernel.is_ready

    def are_compiled(self) -> bool:
        """Whether kernels that lacked are there, so that recording again pays. It is asked before each replay."""
        if not self.lacking or not all(kernel.is_done for kernel in self.lacking):
            return False
        found, self.lacking = any(kernel.is_ready for kernel in self.lacking), []
        return found

    def stats(self) -> dict[str, int]:
        failed = sum(kernel is None or kernel.is_done and not kernel.is_ready for kernel in self.asked)
        return {"chains": self.chains, "chained": self.links, "chains_failed": failed}


def _is_view(ins: Instruction) -> bool:
    return ins.op.view and all(spec.dtype is ins.specs[0].dtype for spec in ins.made)  # a cast to another dtype is none
