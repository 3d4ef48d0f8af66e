"""The utilization of an NVIDIA GPU, asked of the driver's own library (NVML): no package is needed for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

LIBRARY = "libnvidia-ml.so.1"


class Rates(ctypes.Structure):
    """Percent of the last second or less in which a kernel ran, and in which memory was read or written."""

    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


def meter(uuid: str) -> Callable[[], float] | None:
    """A function that returns the utilization of the GPU with this UUID, below zero if it cannot be told; None where there is
    no driver, or for a part of a GPU, of which NVML tells nothing."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    gpu, found = ctypes.c_void_p(), Rates()
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(gpu)):
        return None

    def read() -> float:
        failed = library.nvmlDeviceGetUtilizationRates(gpu, ctypes.byref(found))
        return -1.0 if failed else found.gpu / 100

    return read if read() >= 0 else None
