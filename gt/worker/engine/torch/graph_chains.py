"""The chains and split products of one CUDA graph. It is recorded with the kernels that are compiled by then, and again when
the others are."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from gt import environment
from gt.lazy_import import LazyImport
from gt.ops import Kind
from gt.program import Instruction, Program
from gt.worker.engine.torch import chain_source
from gt.worker.engine.torch.product_sizes import product_sizes
from gt.worker.programs.passes.chains import CHAIN, fuse_chains
from gt.worker.programs.passes.split_factors import FACTORS, SPLIT, SPLIT_PRODUCT, ProductSizes, split_factors

chain_kernels = LazyImport("gt.worker.engine.torch.chain_kernels")  # imports Triton
split_products = LazyImport("gt.worker.engine.torch.split_products")
graph_group_norm = LazyImport("gt.worker.engine.torch.graph_group_norm")
graph_attention = LazyImport("gt.worker.engine.torch.graph_attention")
HOPPER = 9  # compute capability of the devices on which split products were measured
IMAGES = 4  # axes of images, which may lie with their channels last


class GraphChains:
    """`lacking` are kernels that the last recording would have had, but were not compiled. A graph that is recorded together
    with others' `waits` for none."""

    def __init__(self, engine: Any, waits: bool) -> None:
        self.engine, self.waits = engine, waits
        self.asked: list[Any] = []  # the kernels that the last recording asked for; None where there are too many
        self.lacking: list[Any] = []
        self.chains = self.links = self.products = self.group_norms = self.attentions = 0  # of the last recording

    def begin(self) -> bool:
        """Begin a recording; returns whether Triton is there."""
        self.asked, self.lacking = [], []
        self.chains = self.links = self.products = self.group_norms = self.attentions = 0
        if importlib.util.find_spec("triton") is None:
            return False
        if self.engine.chains is None:
            self.engine.chains = chain_kernels.ChainKernels(self.engine.at)
        return True

    def applied(
        self, program: Program, images: bool, stage: Callable[[str, Program], Program]
    ) -> tuple[Program, dict[int, Any]]:  # fmt: skip
        """The program with split products and chains, and the kernels of both by number."""
        if not self.begin():
            return program, {}
        norms = {} if images else self.norms(program)
        attentions = self.attention(program)
        program, products = self.split(program)
        program, chains = self.fuse(stage("factors split", program), images)
        return stage("chains fused", program), norms | attentions | products | chains

    def norms(self, program: Program) -> dict[int, Any]:
        """Kernels for group norms and their gradients, by number."""
        ready = self._by_kind(program, graph_group_norm)
        self.group_norms = sum(ins.number in ready for ins in program.instructions)
        return ready

    def attention(self, program: Program) -> dict[int, Any]:
        """Kernels for attention and its gradient from pieces, by number."""
        ready = self._by_kind(program, graph_attention) if self._splits() else {}
        self.attentions = sum(ins.number in ready for ins in program.instructions)
        return ready

    def _by_kind(self, program: Program, module: Any) -> dict[int, Any]:
        """The kernels of a module that are compiled, by number."""
        kinds = {ins.number: ins.kind for ins in program.instructions if not (ins.holes or ins.parts or ins.in_place)}
        found = {n: module.kernel(kind, self.engine.chains.ask) for n, kind in kinds.items()}
        return {n: kernel for n, kernel in found.items() if kernel is not None and self._is_ready(kernel)}

    def _splits(self) -> bool:
        """Whether products are computed from pieces of their factors."""
        return environment.SPLIT_PRODUCTS.value() and torch.cuda.get_device_capability(self.engine.at)[0] == HOPPER

    def fuse(self, program: Program, images: bool) -> tuple[Program, dict[int, Any]]:
        """The program with chains, and their kernels by number. Views are left alone, and in a program with `images` that have
        their channels last all ops on such tensors that read other places: a chain's kernel wants its tensors packed."""
        if not environment.CHAINS.value():
            return program, {}
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

    def split(self, program: Program) -> tuple[Program, dict[int, Any]]:
        """The program with products of split factors, and the kernels of both by number."""
        if not self._splits():
            return program, {}

        def sizes_of(ins: Instruction) -> ProductSizes | None:
            sizes = product_sizes(ins.kind)
            return sizes if sizes is not None and self._is_ready(kernel(sizes, len(ins.kind.ins)).kernel) else None

        def kernel(sizes: ProductSizes, operands: int) -> Any:
            return split_products.SplitProduct(sizes, operands > FACTORS, self.engine.chains.ask)

        after = split_factors(program, sizes_of)
        self.products = sum(ins.op is SPLIT_PRODUCT for ins in after.instructions)
        products = {
            n: kernel(kind.settings["sizes"], len(kind.ins)) for n, kind in after.kinds.items() if kind.row is SPLIT_PRODUCT
        }
        return after, products | {n: split_products.split for n, kind in after.kinds.items() if kind.row is SPLIT}

    def _has_kernel(self, kind: Kind) -> bool:
        return self._is_ready(self.engine.chains.get(kind))

    def _is_ready(self, kernel: Any) -> bool:
        self.asked.append(kernel)
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
        counts = {"chains": self.chains, "chained": self.links, "chains_failed": failed}
        return counts | {"split_products": self.products, "group_norms": self.group_norms, "attentions": self.attentions}


def _is_view(ins: Instruction) -> bool:
    return ins.op.view and all(spec.dtype is ins.specs[0].dtype for spec in ins.made)  # a cast to another dtype is none
