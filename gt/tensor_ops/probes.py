"""Probes of the kernels that gt.tensor_ops has itself, for the registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gt.backends.facts import Found, Missing, Outcome, host_memory
from gt.backends.probes import gpu_torch, on_gpu
from gt.tensor_ops.check import TOLERANCE, self_test
from gt.tensor_ops.cpp import backend as cpp_backend
from gt.tensor_ops.cuda import backend as cuda_backend
from gt.tensor_ops.opencl import backend as opencl_backend

# The ops that each computes itself, in `gt.tensor_ops` and on a worker, and the library of a worker's other ops.
_OURS = "rms_norm, silu, gelu"
_CPP = "rms_norm, silu, gelu, exp, sigmoid, relu, add, sub, mul, div, gradients of three"


def cpp() -> Outcome:
    def facts() -> tuple[str, str, int, int, int]:
        info = cpp_backend.get_optimization_info()
        build = Path(info["library"]).stem.removeprefix("kernels-")[:8]
        return f"GT's kernels for {info['instruction_set']}, build", build, info["threads"], host_memory(), 0

    return _ours(cpp_backend, f"{_CPP}; the rest by NumPy", facts)


def opencl() -> Outcome:
    def facts() -> tuple[str, str, int, int, int]:
        info = opencl_backend.get_opencl_info()
        library = f"{info['platform']} on a {info['device_type']}"
        return library, info["driver"], info["compute_units"], info["max_memory"], info["max_shared_memory"]

    return _ours(opencl_backend, f"{_OURS}; the rest by NumPy", facts)


def _ours(backend: Any, executes: str, facts: Any) -> Outcome:
    if reason := backend.reason_unavailable():
        return Missing(reason)
    test = self_test(backend)
    library, version, units, memory, shared = facts()
    found = Found(library, version, executes, test.max_abs_err, test.seconds, dtypes=tuple(backend.dtypes))
    return replace(found, compute_units=units, max_memory=memory, max_shared_memory=shared, tolerance=TOLERANCE)


def triton() -> Outcome:
    torch = gpu_torch()
    if isinstance(torch, Missing):
        return torch
    if reason := cuda_backend.reason_unavailable():
        return Missing(reason)
    test = self_test(cuda_backend)
    version = cuda_backend.get_cuda_info()["triton"]
    return on_gpu(torch, "Triton", f"{_OURS}; the rest by PyTorch", (test.max_abs_err, test.seconds), version)
