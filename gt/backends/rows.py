"""GT's backends, one row each: the probe of its availability, and the parts of GT that run on it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gt.backends import probes
from gt.backends.facts import Outcome
from gt.backends.memory import remembered


def named(path: str) -> Any:
    """The object of `module:name`. These modules are above the registry and are imported at their first use."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def probe_at(path: str) -> Callable[[], Outcome]:
    return lambda: named(path)()


class BackendRow(NamedTuple):
    """A backend. An empty column means that GT has no such form of it."""

    name: str
    display_name: str
    probe: Callable[[], Outcome]
    engine: str = ""  # the function that makes a worker's engine
    decode: str = ""  # the class that runs a PersistentKernel on it
    arrays: str = ""  # its name in gt.tensor_ops
    package: str = ""  # of GT's reference engines: the required package. They are not probed when a worker starts.


_LIBRARY = "gt.worker.engine.torch.library:make"
_OWN = "gt.worker.engine.own_kernels:make"
_GPU, _INTEL = "gt.persistent.gpu", "gt.persistent.intel_executors"
_OPENMP = "gt.persistent.openmp.executor:OpenMPExecutor"
_NUMPY = "gt.persistent.numpy_executor:NumpyExecutor"
_TORCH = "gt.persistent.torch_executor"
_OPENCL = "gt.persistent.opencl_executor:OpenCLExecutor"

# In order of priority. The slow probes, which start a process of their own, are remembered between processes.
ROWS = (
    BackendRow("cuda", "NVIDIA CUDA", probes.cuda, _LIBRARY, f"{_GPU}.cuda_executor:CudaExecutor", arrays="cuda"),
    BackendRow("triton", "Triton", probe_at("gt.tensor_ops.probes:triton"), _LIBRARY, f"{_GPU}.triton_executor:TritonExecutor"),
    BackendRow("cudnn", "NVIDIA cuDNN", probes.cudnn, _LIBRARY),
    BackendRow("mps", "Apple Metal", probes.mps, decode=f"{_TORCH}:MPSExecutor"),
    BackendRow("cpp", "GT C++ kernels", probe_at("gt.tensor_ops.probes:cpp"), _OWN, _OPENMP, "cpp"),
    BackendRow("opencl", "OpenCL", probe_at("gt.tensor_ops.probes:opencl"), _OWN, _OPENCL, "opencl"),
    BackendRow("openmp", "OpenMP", probes.openmp, _LIBRARY, _OPENMP),
    BackendRow("mkl", "Intel MKL", partial(remembered, "mkl", "torch", probes.mkl), _LIBRARY, f"{_INTEL}:MKLExecutor"),
    BackendRow("mkldnn", "oneDNN", partial(remembered, "mkldnn", "torch", probes.mkldnn), _LIBRARY, f"{_INTEL}:OneDNNExecutor"),
    BackendRow("cpu", "CPU", probes.cpu, "gt.worker.engine.choose:cpu", _NUMPY),
    BackendRow("numpy", "NumPy", probes.numpy, "gt.worker.engine.numpy:make", _NUMPY, "python", "numpy"),
    BackendRow("pytorch", "PyTorch", probes.pytorch, "gt.worker.engine.torch.engine:make", f"{_TORCH}:TorchExecutor",
               package="torch"),
    BackendRow("nki", "AWS Neuron", probes.nki),
)  # fmt: skip
ALIASES = {"onednn": "mkldnn"}
DEFAULTS = ("pytorch", "numpy")


class ArrayOps(NamedTuple):
    """A backend of gt.tensor_ops: the row whose probe runs its kernels, and the module that has them."""

    row: str
    module: str


ARRAYS = {
    "cuda": ArrayOps("triton", "gt.tensor_ops.cuda.backend"),
    "opencl": ArrayOps("opencl", "gt.tensor_ops.opencl.backend"),
    "cpp": ArrayOps("cpp", "gt.tensor_ops.cpp.backend"),
    "python": ArrayOps("numpy", "gt.tensor_ops.python"),
}
