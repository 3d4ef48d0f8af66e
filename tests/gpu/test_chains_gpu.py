"""Chains of elementwise ops in CUDA graphs: the kernel of one gives the bits of PyTorch's kernels of its ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.ops import infer, row
from gt.program import Instruction, Program, run, with_frees
from gt.spec import Spec, float32
from gt.testing import cluster
from gt.worker.engine.choose import make as engine_for
from gt.worker.engine.torch import chain_source
from gt.worker.engine.torch.graph_chains import GraphChains
from gt.worker.engine.torch.graph_function import tensor_kernels
from gt.worker.programs.passes.chains import CHAIN
from tests.gpu.training import await_kernels
from tests.ops.chain_cases import Writer, cases

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

ENGINE = engine_for("pytorch")
CASES = cases()


def fused(program: Program) -> tuple[Program, dict[int, Any]]:
    chains = GraphChains(ENGINE, waits=True)
    chains.begin()
    chains.fuse(program, images=False)
    await_kernels(ENGINE)
    assert not ENGINE.chains.failures, ENGINE.chains.failures
    assert chains.are_compiled() or not chains.lacking
    chains.begin()
    return chains.fuse(program, images=False)


@pytest.mark.parametrize("name", CASES)
def test_a_chain_gives_the_bits_of_its_ops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_source, "LEAST", 1)
    writer, program = CASES[name]
    assert isinstance(writer, Writer)
    after, kernels = fused(program)
    assert [ins.op for ins in after.instructions] == [CHAIN], str(after)
    one_by_one = tensor_kernels(program, {n: SimpleNamespace(kind=k) for n, k in program.kinds.items()}, ENGINE, in_place=True)
    inputs, numbers = writer.arrays("cuda"), [torch.tensor(0.37, dtype=torch.float64, device="cuda")] * program.holes
    by_kind = {id(k): one_by_one[n] for n, k in program.kinds.items()} | {
        id(ins.kind): kernels[ins.number] for ins in after.instructions
    }
    found, want = (run(p, inputs, numbers, lambda kind: by_kind[id(kind)]) for p in (after, program))
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        if a.is_floating_point():
            assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


@pytest.mark.parametrize("mixed", [False, True])
def test_a_chain_of_images_leaves_their_channels_last(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_source, "LEAST", 1)
    spec = Spec((4, 5, 6, 7), float32)
    kinds = [infer(row("add"), (spec, spec), ()), infer(row("relu"), (spec,), ())]
    body = [Instruction(1, kinds[0], (3,), (1, 2)), Instruction(2, kinds[1], (4,), (3,))]
    after, kernels = fused(Program(7, 2, with_frees(body, {1, 2, 4}), (4,)))
    a, b = torch.randn(2, 4, 5, 6, 7, device="cuda")
    a = a.contiguous(memory_format=torch.channels_last)
    b = b if mixed else b.contiguous(memory_format=torch.channels_last)
    [made] = run(after, [a, b], [], lambda kind: kernels[after.instructions[0].number])
    assert torch.equal(made, (a + b).relu())
    assert mixed or made.is_contiguous(memory_format=torch.channels_last)


def heat(steps: int, waits: bool) -> tuple[list[Any], dict[str, Any]]:
    """Looks at some states, and holds others for a while."""
    rng = np.random.default_rng(0)
    with cluster(1, "pytorch") as c:
        u, found, held = gt.tensor(rng.standard_normal((256, 300), np.float32)), [], []
        for i in range(steps):
            source = gt.tensor(rng.standard_normal((256, 300), np.float32))
            for _ in range(3):
                around = gt.roll(u, 1, 0) + gt.roll(u, -1, 0) + gt.roll(u, 1, 1) + gt.roll(u, -1, 1) - 4 * u
                u = u + 0.1 * around + 0.01 * source
            held = [*held[-2:], u]
            if i % 5 == 4:
                found += [u.abs().max().item(), *[h.numpy() for h in held]]
            if waits and i == steps // 2:
                await_kernels(c.workers[0].engine)
        return found, c.workers[0].stats()["traces"]


def test_a_graph_with_chains_gives_the_bits_of_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, stats = heat(60, waits=True)
    monkeypatch.setenv("GT_CHAINS", "0")
    want, plain = heat(60, waits=False)
    assert stats["chains"] >= 3 and stats["chained"] >= 3 * 13 and not stats["chains_failed"], stats
    assert stats["graph_captures"] > plain["graph_captures"] and not stats.get("fallbacks", 0), stats
    assert not plain["chains"] and plain["compiled_calls"], plain
    for a, b in zip(mine, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_chain_that_does_not_compile_is_counted_and_its_ops_run(monkeypatch: pytest.MonkeyPatch) -> None:
    source = chain_source.source
    monkeypatch.setattr("gt.worker.engine.torch.chain_kernels.source", lambda kind: source(kind).replace("tl.store", "tl.stor"))
    mine, stats = heat(60, waits=True)
    monkeypatch.setenv("GT_CHAINS", "0")
    want, _ = heat(60, waits=False)
    assert stats["compiled_calls"] and not stats["chains"] and not stats.get("fallbacks", 0), stats
    assert stats["chains_failed"], stats
    for a, b in zip(mine, want, strict=True):
        np.testing.assert_array_equal(a, b)
