"""One probe for each backend: compute with that library on that device, and return the result.

Importing a library proves nothing; a probe returns Found only for numbers that the library itself produced.
"""

import importlib.util
import json
import os
import platform
import subprocess
import sys
from typing import Any

import numpy as np

from gt.backends.facts import FLOATS, Found, Missing, Outcome, cpu_count, host_memory, try_product
from gt.backends.machine import driver_reason

_NO_NUMPY_BF16 = ("float16", "float32", "float64")
_SECONDS = 120


def _torch() -> Any | Missing:
    if importlib.util.find_spec("torch") is None:
        return Missing("torch is not installed")
    try:
        import torch
    except (ImportError, OSError) as error:
        return Missing(f"torch cannot be imported: {error}")
    return torch


def _torch_product(torch: Any, device: str) -> tuple[float, float]:
    return try_product(lambda a, b: (torch.from_numpy(a).to(device) @ torch.from_numpy(b).to(device)).cpu().numpy())


def _host(library: str, version: str, executes: str, tried: tuple[float, float], dtypes: Any = FLOATS) -> Found:
    return Found(library, version, executes, *tried, compute_units=cpu_count(), max_memory=host_memory(), dtypes=tuple(dtypes))


def numpy() -> Outcome:
    return _host("NumPy", np.__version__, "every op, on the CPU", try_product(np.matmul), _NO_NUMPY_BF16)


def pytorch() -> Outcome:
    torch = _torch()
    if isinstance(torch, Missing):
        return torch
    if torch.cuda.is_available():
        return on_gpu(torch, f"PyTorch {torch.__version__}", "every op, on the GPU", _torch_product(torch, "cuda"))
    return _host("PyTorch", torch.__version__, "every op, on the CPU", _torch_product(torch, "cpu"))


def cpu() -> Outcome:
    torch = _torch()
    if isinstance(torch, Missing):
        return numpy()
    return _host("PyTorch", torch.__version__, "every op, on the CPU", _torch_product(torch, "cpu"))


def openmp() -> Outcome:
    torch = _torch()
    if isinstance(torch, Missing):
        return torch
    lines = [line.strip() for line in torch.__config__.parallel_info().splitlines()]
    if "ATen parallel backend: OpenMP" not in lines:
        return Missing("this build of torch does not use OpenMP")
    version = next((line.split("a.k.a.")[-1].strip(" )") for line in lines if "a.k.a. OpenMP" in line), "unknown")

    def threaded(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # Repeated until torch's own loops run in parallel.
        many = torch.from_numpy(a).repeat(64, 8)  # (4096, 768)
        return ((many * 2 - many)[:64, :96] @ torch.from_numpy(b)).numpy()

    return _host(
        "OpenMP in PyTorch",
        version,
        "every op, on the CPU; loops over 32768 elements and more in OpenMP's threads",
        try_product(threaded),
    )


def on_gpu(torch: Any, library: str, executes: str, tried: tuple[float, float], version: str = "") -> Found:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Found(
        library,
        version or torch.version.cuda or torch.__version__,
        executes,
        *tried,
        device_count=torch.cuda.device_count(),
        compute_capability=properties.major * 10 + properties.minor,
        compute_units=properties.multi_processor_count,
        max_memory=properties.total_memory,
        max_shared_memory=getattr(properties, "shared_memory_per_block_optin", 0),
    )


def gpu_torch() -> Any | Missing:
    if reason := driver_reason():
        return Missing(reason)
    torch = _torch()
    if not isinstance(torch, Missing) and not torch.cuda.is_available():
        return Missing("this build of torch cannot use the GPU")
    return torch


def cuda() -> Outcome:
    torch = gpu_torch()
    if isinstance(torch, Missing):
        return torch
    return on_gpu(torch, "CUDA", "every op, on the GPU", _torch_product(torch, "cuda"))


def cudnn() -> Outcome:
    torch = gpu_torch()
    if isinstance(torch, Missing):
        return torch
    if not torch.backends.cudnn.is_available():
        return Missing("this build of torch has no cuDNN")

    def convolution(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # A 1x1 convolution is the matrix product, and this op is cuDNN's own entry: it has no other implementation.
        x, w = torch.from_numpy(a).cuda()[:, :, None, None], torch.from_numpy(b.T.copy()).cuda()[:, :, None, None]
        y = torch.ops.aten.cudnn_convolution(x, w, [0, 0], [1, 1], [1, 1], 1, False, False, False)
        return y[:, :, 0, 0].cpu().numpy()

    version = str(torch.backends.cudnn.version())
    return on_gpu(
        torch,
        "cuDNN",
        "convolutions of float32 and float64 images; the rest by PyTorch, on the GPU",
        try_product(convolution),
        version,
    )


def mps() -> Outcome:
    if sys.platform != "darwin" or platform.machine() != "arm64":
        return Missing("needs macOS on Apple silicon")
    torch = _torch()
    if isinstance(torch, Missing):
        return torch
    if not torch.backends.mps.is_available():
        return Missing("this build of torch cannot use Metal")
    tried = _torch_product(torch, "mps")
    return _host("Metal Performance Shaders", torch.__version__, "every op, on the GPU", tried, FLOATS[:3])


def nki() -> Outcome:
    if importlib.util.find_spec("neuronxcc") is None:
        return Missing("the AWS Neuron SDK (neuronxcc) is not installed")
    return Missing("the AWS Neuron SDK is installed, but GT has no kernels for it")


def mkl() -> Outcome:
    torch = _torch()
    if isinstance(torch, Missing):
        return torch
    if not torch.backends.mkl.is_available():
        return Missing("this build of torch has no MKL")
    log, dtypes = {"MKL_VERBOSE": "1"}, ("float32", "float64")
    return _by_log(
        "mkl", "MKL", "products of float32 and float64 matrices; the rest by PyTorch", log, "MKL_VERBOSE SGEMM", dtypes
    )


def mkldnn() -> Outcome:
    torch = _torch()
    if isinstance(torch, Missing):
        return torch
    if not torch.backends.mkldnn.is_available():
        return Missing("this build of torch has no oneDNN")
    log = {"ONEDNN_VERBOSE": "1", "DNNL_VERBOSE": "1"}
    return _by_log(
        "mkldnn",
        "oneDNN",
        "products of float32 matrices, convolutions of images; the rest by PyTorch",
        log,
        "verbose",
        ("float32",),
    )


_CHILD = """
import json, sys, torch
from gt.backends.machine import driver_reason
from gt.backends.facts import try_product

def mkl(a, b):
    return (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()

def mkldnn(a, b):
    x, w = torch.from_numpy(a).to_mkldnn(), torch.from_numpy(b.T.copy()).to_mkldnn()
    return torch.ops.aten.mkldnn_linear(x, w).to_dense().numpy()

print("outcome", json.dumps(try_product({"mkl": mkl, "mkldnn": mkldnn}[sys.argv[1]])), flush=True)
"""


def _by_log(name: str, library: str, executes: str, log: dict[str, str], proof: str, dtypes: Any) -> Outcome:
    """Torch may compute the same product without this library, so the library's own log has to show that it ran.

    The log goes to the process's standard output, hence a process of its own.
    """
    environment = os.environ | log
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", _CHILD, name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_SECONDS, check=False)
    lines = done.stdout.splitlines()
    if done.returncode != 0:
        return Missing(f"its probe failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    ran = [line for line in lines if proof in line and (name == "mkl" or ",exec," in line)]
    if not ran:
        return Missing("torch computed the product without it: its own log shows no call")
    tried = json.loads(next(line for line in lines if line.startswith("outcome")).removeprefix("outcome"))
    return _host(library, _logged_version(lines), executes, (tried[0], tried[1]), dtypes)


def _logged_version(lines: list[str]) -> str:
    for line in lines:
        for mark in ("oneDNN v", "MKL_VERBOSE oneMKL ", "MKL_VERBOSE Intel(R) "):
            if mark in line:
                return line.split(mark, 1)[1].split(" (")[0].split(" Product")[0].strip()
    return "unknown"
