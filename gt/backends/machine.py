"""Facts about this machine on which builds and probes depend: its CPU, its driver, and the folder of caches."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "gt" / "tensor_ops"


def cpu_identity() -> str:
    """The identity of the CPU for the compiler's `native`. Machines with different CPUs may share a cache."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})])


def driver_reason() -> str | None:
    """The reason why the NVIDIA driver offers no device, or None; without a GPU this saves the import of torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1" if sys.platform == "linux" else "nvcuda")
    except OSError:
        return "no NVIDIA driver is installed"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver offers no device"
    return None
