"""A graph is recorded with the kernels of chains that are compiled, and again once the others are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from programs import ADD, MUL, NEG, RESHAPE, op, program

from gt.program import Program
from gt.worker.engine.torch import chain_source, graph_chains
from gt.worker.engine.torch.graph_chains import GraphChains
from gt.worker.programs.passes.chains import CHAIN

TWO_CHAINS = [op(ADD, 3, 1, 2), op(NEG, 4, 3), op(RESHAPE, 5, 4), op(MUL, 6, 1, 2), op(NEG, 7, 6)]


class Kernels:
    """Kernels by the ops of their chain, which a test compiles."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def get(self, kind: Any) -> Any:
        return self.made.setdefault(str(kind.settings["chain"]), SimpleNamespace(is_ready=False, is_done=False))

    def end(self, name: str, is_ready: bool = True) -> None:
        self.made[name].is_ready, self.made[name].is_done = is_ready, True


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    monkeypatch.setattr(chain_source, "LEAST", 1)
    monkeypatch.setattr(graph_chains.importlib.util, "find_spec", lambda name: name)  # as if Triton were there
    return Kernels()


def fuse(chains: GraphChains, p: Program) -> Any:
    assert chains.begin()
    return chains.fuse(p, images=False)


def names(p: Program) -> list[str]:
    return [str(ins.kind.settings["chain"]) if ins.op is CHAIN else ins.op.name for ins in p.instructions]


def test_a_graph_waits_for_all_kernels_that_it_lacks(kernels: Kernels) -> None:
    chains, before = GraphChains(SimpleNamespace(chains=kernels), waits=True), program(2, TWO_CHAINS, (5, 7))
    assert fuse(chains, before) == (before, {}) and not chains.are_compiled()
    kernels.end("add neg")
    assert not chains.are_compiled()
    kernels.end("mul neg", is_ready=False)
    assert chains.are_compiled() and not chains.are_compiled(), "it is recorded again once"
    after, by_number = fuse(chains, before)
    assert names(after) == ["add neg", "reshape", "mul", "neg"] and list(by_number.values()) == [kernels.made["add neg"]]
    assert (
        chains.stats()
        == {"chains": 1, "chained": 2, "chains_failed": 1, "split_products": 0, "group_norms": 0, "attentions": 0}
        and not chains.lacking
    )


def test_a_graph_is_not_recorded_again_for_kernels_that_failed(kernels: Kernels) -> None:
    chains = GraphChains(SimpleNamespace(chains=kernels), waits=True)
    fuse(chains, program(2, TWO_CHAINS[:2], (4,)))
    kernels.end("add neg", is_ready=False)
    assert not chains.are_compiled() and chains.stats()["chains_failed"] == 1


def test_a_graph_of_several_workers_waits_for_none(kernels: Kernels) -> None:
    chains = GraphChains(SimpleNamespace(chains=kernels), waits=False)
    fuse(chains, program(2, TWO_CHAINS[:2], (4,)))
    kernels.end("add neg")
    assert not chains.are_compiled()


def test_ops_of_views_stay_alone_and_all_do_without_the_variable(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    chains = GraphChains(SimpleNamespace(chains=kernels), waits=True)
    of_view = program(2, [op(RESHAPE, 3, 1), op(ADD, 4, 3, 2), op(NEG, 5, 4)], (5,))
    assert fuse(chains, of_view)[0] is of_view
    monkeypatch.setenv("GT_CHAINS", "0")
    fuse(chains, program(2, TWO_CHAINS, (5, 7)))
    assert not kernels.made and not chains.lacking
