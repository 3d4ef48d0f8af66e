"""Kernels of chains give the results of their ops one by one; here on the CPU, by Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops.interpreted import assert_prints_right

INTERPRETED = """
import sys, warnings
warnings.simplefilter("ignore")  # NumPy under the interpreter remarks on overflows
sys.path.insert(0, sys.argv[1])
import torch
from tests.ops.chain_cases import cases
from gt.program import run
from gt.worker.engine.torch import chain_source
from gt.worker.engine.torch.chain_kernels import ChainKernels
from gt.worker.engine.torch.engine import TorchEngine
from gt.worker.programs.passes.chains import CHAIN, fuse_chains

at = torch.device("cpu")
chain_source.LEAST = 1
engine, kernels, number = TorchEngine("cpu"), ChainKernels(at), torch.tensor(0.37, dtype=torch.float64)

def kernel(kind):
    if kind.row is not CHAIN:
        return engine.kernel(kind)
    found = kernels.get(kind)
    while (thread := kernels.thread) is not None:
        thread.join()
    assert found.is_ready, kernels.failures
    return found

for name, (writer, program) in cases().items():
    if "bfloat16" in name or name == "casts":
        continue  # the interpreter cuts digits off where a GPU rounds
    fused = fuse_chains(program, chain_source.joins, chain_source.at_own_place, lambda kind: True)
    assert [ins.op for ins in fused.instructions] == [CHAIN], (name, str(fused))
    inputs = writer.arrays("cpu")
    made = run(fused, inputs, [number] * program.holes, kernel)
    for a, b in zip(made, run(program, inputs, [0.37] * program.holes, engine.kernel), strict=True):
        near = 0 if "arithmetic" in name else 1e-6  # CPUs divide by a number
        torch.testing.assert_close(a, b, rtol=near, atol=near, equal_nan=True, msg=lambda text: f"{name}: {text}")
print("right")
"""


def test_kernels_of_chains_give_the_results_of_their_ops() -> None:
    pytest.importorskip("triton")
    assert_prints_right(INTERPRETED, str(Path(__file__).parents[2]))
