"""The GPU of a worker."""

from __future__ import annotations

import pytest
import torch

from gt.worker.engine.torch.engine import best_device


@pytest.mark.parametrize(
    ("variables", "device"),
    [
        ({}, "cuda:0"),
        ({"LOCAL_RANK": "2"}, "cuda:2"),
        ({"SLURM_LOCALID": "3"}, "cuda:3"),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "3"}, "cuda:1"),
        ({"LOCAL_RANK": "5"}, "cuda:1"),  # more workers than GPUs
    ],
    ids=str,
)
def test_the_rank_on_this_host_picks_the_gpu(monkeypatch: pytest.MonkeyPatch, variables: dict, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for name in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert best_device() == device


def test_without_a_gpu_it_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert best_device() == "cpu"
