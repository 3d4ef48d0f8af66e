"""What this machine is, as far as builds and probes depend on it: its CPU, its driver, and where results are kept."""

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
    """What the compiler's `native` depends on. A cache may lie on a file system that different CPUs share."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part", "CPU variant")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join([platform.machine(), *sorted({line for line in lines if line.startswith(wanted)})])


def driver_reason() -> str | None:
    """Why the NVIDIA driver offers no device; asking it spares hosts without a GPU the import of torch."""
    try:
        driver = ctypes.CDLL("libcuda.so.1" if sys.platform == "linux" else "nvcuda")
    except OSError:
        return "no NVIDIA driver is installed"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver offers no device"
    return None
