"""Backends on a GPU pass the tests that we ship for backends; the environment picks the GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gt.testing import check_backend
from gt.testing.samples import ROWS

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

WHERE = "import gt; gt.ones(1).numpy(); print(*[w['device'] for w in gt.debug.get_worker_stats().values()])"


# The table in parts: on a new machine PyTorch compiles kernels of many ops, such as the special functions, when first used.
PARTS = 12


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["cuda", "triton", "cudnn"])
def test_a_backend_of_the_gpu_runs_the_whole_table(name: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # by default cuDNN rounds operands, as in PyTorch
    rows = tuple(row.name for row in ROWS[part::PARTS])
    assert check_backend(name, rows).rows == len(rows)


@pytest.mark.parametrize(
    ("variables", "device"),
    [
        ({}, "cuda:0 "),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "cuda:0 "),
        ({"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        ({"LOCAL_RANK": "0"}, "cuda:0 "),
        ({"SLURM_LOCALID": "0"}, "cuda:0 "),
    ],
    ids=str,
)
def test_the_environment_picks_the_device(variables: dict[str, str], device: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHERE], env={**os.environ, **variables}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.startswith(device), done.stdout + done.stderr
