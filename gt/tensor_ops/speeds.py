"""The time of each backend on this machine: measured once, then stored for this machine and these versions."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gt.backends.machine import cache_folder, cpu_identity
from gt.tensor_ops import calls
from gt.tensor_ops.cpp.build import compiler

SIZES = (1 << 12, 1 << 16, 1 << 20)
FOR_DEVICES = (1 << 23,)  # also measured for a backend with memory of its own: only large arrays are worth a transfer
# A backend that takes this many times the best one's time is not measured at larger sizes, except after the smallest size,
# where a device's time is that of the transfer.
HOPELESS = 30
PACKAGES = ("numpy", "pyopencl", "pocl-binary-distribution", "torch", "triton")
COLUMNS = 256

Speeds = dict[str, dict[int, float]]  # seconds by backend, then number of elements


def measure(backends: Mapping[str, Any], clock: Callable[[], float] = time.perf_counter) -> Speeds:
    """Seconds for one silu, gelu and rms_norm each, on float32 arrays on the host: the best of three, in turns."""
    taken: Speeds = {name: {} for name in backends}
    left = dict(backends)
    sizes = SIZES + (FOR_DEVICES if any(backend.on_device for backend in backends.values()) else ())
    for size in sizes:
        x = np.full((size // COLUMNS, COLUMNS), 0.5, dtype=np.float32)
        weight, best = np.ones(COLUMNS, dtype=np.float32), dict.fromkeys(left, float("inf"))
        for turn in range(4):
            for name, backend in left.items():
                began = clock()
                calls.silu(backend, x), calls.gelu(backend, x), calls.rms_norm(backend, x, weight)
                if turn:  # the first one warms up
                    best[name] = min(best[name], clock() - began)
        for name, seconds in best.items():
            taken[name][size] = seconds
        if size > sizes[0]:
            left = {name: backend for name, backend in left.items() if best[name] < HOPELESS * min(best.values())}
    return taken


def fastest(speeds: Speeds, size: int | None = None) -> str:
    """The fastest backend for arrays of that size, by default the largest that was measured."""
    sizes = {measured for times in speeds.values() for measured in times}
    at = max(sizes) if size is None else size
    return min(speeds, key=lambda name: speeds[name].get(at, float("inf")))


def small_inputs(speeds: Speeds) -> tuple[str, int] | None:
    """The backend for arrays that are too small for the fastest one, and the size from which they are not."""
    best = fastest(speeds)
    ascending = sorted({size for times in speeds.values() for size in times})
    other = fastest(speeds, ascending[0])
    if other == best:
        return None
    slower = [size for size in ascending if fastest(speeds, size) != best]
    return other, min(size for size in ascending if size > max(slower))


def identity() -> str:
    """A key of all that the times depend on, without imports: the machine, the libraries' versions and our own sources."""
    digest = hashlib.sha256(cpu_identity().encode())
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    for driver in (Path("/proc/driver/nvidia/version"), Path("/etc/OpenCL/vendors")):
        with contextlib.suppress(OSError):
            said = sorted(os.listdir(driver)) if driver.is_dir() else driver.read_text()
            digest.update(f"{driver} {said}\n".encode())
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    digest.update(f"{cpus} {compiler()}".encode())
    folder = Path(__file__).parent
    for source in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cpp", ".cl")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:20]


def _path() -> Path:
    return cache_folder() / f"speeds-{identity()}.json"


def kept() -> Speeds | None:
    """The measurements of an earlier process; None if they cannot be read."""
    try:
        read = json.loads(_path().read_text())
        speeds = {str(name): {int(size): float(s) for size, s in times.items()} for name, times in read.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    return speeds if any(speeds.values()) else None


def keep(speeds: Speeds) -> None:
    """Write the whole file or nothing. If the folder cannot be written, the next process measures again."""
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(prefix=path.name, dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(speeds, file)
        os.replace(made, path)
