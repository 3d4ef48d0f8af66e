"""The utilisation of a GPU by a mock of NVML: the queried GPU, and unknown values."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from gt.worker.state import gpu_meter


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """An NVML with two GPUs, of which the second is busy for 70% of the time."""
    made = types.ModuleType("pynvml")
    made.NVMLError, made.NVMLError_DriverNotLoaded = NVMLError, NVMLError  # type: ignore[attr-defined]
    made.nvmlInit, made.nvmlDeviceGetHandleByIndex = lambda: None, lambda i: i  # type: ignore[attr-defined]
    made.nvmlDeviceGetUtilizationRates = lambda gpu: types.SimpleNamespace(gpu=[5, 70][gpu])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(torch.cuda, "pynvml", made, raising=False)
    monkeypatch.setattr(torch.cuda, "_HAS_PYNVML", True)
    return made


@pytest.mark.parametrize(
    ("visible", "device", "share"), [("0,1", "cuda:1", 0.7), ("1", "cuda:0 NVIDIA H200", 0.7), ("1,0", "cuda:1", 0.05)]
)
def test_the_gpu_is_counted_as_cuda_counts(
    nvml: types.ModuleType, monkeypatch: pytest.MonkeyPatch, visible: str, device: str, share: float
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_meter(device)() == share


def test_below_zero_where_nvml_cannot_tell(nvml: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(gpu: int) -> None:
        raise NVMLError("not supported")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", unsupported)
    assert gpu_meter("cuda:0")() == -1.0
    assert gpu_meter("cpu")() == -1.0
