"""The utilisation of a GPU by a mock of NVML: the queried GPU, and unknown values."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import pytest
import torch

from gt.worker.state import gpu_meter

UUIDS = ["0c3c2d1e-0000-0000-0000-000000000000", "1c3c2d1e-0000-0000-0000-000000000001"]
FAILED = 3  # NVML_ERROR_NOT_SUPPORTED


class Library:
    """NVML with two GPUs, of which the second is busy for 70% of the time."""

    def __init__(self) -> None:
        self.failed = 0

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, gpu: Any) -> int:
        gpu._obj.value = 1 + UUIDS.index(uuid.decode().removeprefix("GPU-"))
        return 0

    def nvmlDeviceGetUtilizationRates(self, gpu: ctypes.c_void_p, rates: Any) -> int:
        assert gpu.value is not None
        rates._obj.gpu = [5, 70][gpu.value - 1]
        return self.failed


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid=UUIDS[int(device[-1])]))
    return made


@pytest.mark.parametrize(("device", "share"), [("cuda:1", 0.7), ("cuda:1 NVIDIA H200", 0.7), ("cuda:0", 0.05)])
def test_the_gpu_is_the_one_that_pytorch_counts_so(library: Library, device: str, share: float) -> None:
    assert gpu_meter(device)() == share


def test_below_zero_where_nvml_cannot_tell(library: Library) -> None:
    meter = gpu_meter("cuda:0")
    library.failed = FAILED
    assert meter() == -1.0 and gpu_meter("cuda:0")() == -1.0
    assert gpu_meter("cpu")() == -1.0


def test_below_zero_without_a_driver(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert gpu_meter("cuda:1")() == -1.0
