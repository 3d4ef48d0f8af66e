"""Which executor runs a kernel: the first candidate that the registry finds here and that has a decode kernel."""

from __future__ import annotations

import importlib
import warnings
from typing import Any, NamedTuple

from gt import backends
from gt.persistent.executor import Executor

# Where the executor of each backend is. A backend that stands in the registry and not here has no decode kernel yet.
EXECUTORS = {
    "cpu": "gt.persistent.numpy_executor:NumpyExecutor",
    "numpy": "gt.persistent.numpy_executor:NumpyExecutor",
    "cpp": "gt.persistent.openmp.executor:OpenMPExecutor",
    "opencl": "gt.persistent.opencl_executor:OpenCLExecutor",
    "openmp": "gt.persistent.openmp.executor:OpenMPExecutor",
    "mkl": "gt.persistent.intel_executors:MKLExecutor",
    "mkldnn": "gt.persistent.intel_executors:OneDNNExecutor",
    "cuda": "gt.persistent.gpu.cuda_executor:CudaExecutor",
    "triton": "gt.persistent.gpu.triton_executor:TritonExecutor",
    "pytorch": "gt.persistent.torch_executor:TorchExecutor",
    "mps": "gt.persistent.torch_executor:MPSExecutor",
}


class Choice(NamedTuple):
    backend: str
    executor: type[Executor]
    fallback_reason: str | None


def load(name: str) -> type[Executor]:
    module, _, cls = EXECUTORS[name].partition(":")
    return getattr(importlib.import_module(module), cls)


def reason_unavailable(name: str) -> str | None:
    """Why this backend cannot run a PersistentKernel here; None where it can."""
    if reason := backends.reason_unavailable(name):
        return reason
    if name not in EXECUTORS:
        return "GT has no decode kernel for it yet"
    return load(name).reason_unavailable()


def choose(backend: str | None, fallbacks: Any) -> Choice:
    """Raises ValueError if no candidate can be used; warns if it is not the first."""
    if isinstance(fallbacks, str):
        raise TypeError(f"fallback_backends is a list of names, not the string {fallbacks!r}")
    asked = [backend or backends.get_default_backend(), *(fallbacks or ())]
    refused: list[str] = []
    for name in map(backends.known_name, asked):
        if (reason := reason_unavailable(name)) is None:
            if refused:
                warnings.warn(f"PersistentKernel runs on {name!r}, since {'; '.join(refused)}", RuntimeWarning, stacklevel=4)
            return Choice(name, load(name), "; ".join(refused) or None)
        refused.append(f"{name!r} is not available: {reason}")
    raise ValueError(f"no backend for PersistentKernel: {'; '.join(refused)}")
