"""`gt doctor --host`: the devices, engines, libraries, versions and network of this machine, and the features that miss one."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
from collections.abc import Iterator

import psutil

from gt import __version__, environment
from gt.backends import registry
from gt.transport import process_memory, shm
from gt.transport.addresses import outward_address, own_folder
from gt.watch.stats import amount

# A package, and the features that need it.
PACKAGES = {
    "torch": "the PyTorch engine, compiled programs and Gloo or NCCL collectives (pip install torch)",
    "textual": "gt top (pip install textual)",
    "starlette": "the dashboard (pip install starlette uvicorn)",
    "uvicorn": "the dashboard (pip install starlette uvicorn)",
    "matplotlib": "pictures of gt visualize (pip install matplotlib)",
    "pyopencl": "the OpenCL backends (pip install pyopencl)",
    "triton": "the Triton backends (pip install triton)",
    "nvidia-ml-py": "the GPUs' use in gt top (pip install nvidia-ml-py)",
}
PROGRAMS = {"g++": "the C++ kernels of gt.tensor_ops, and torch.compile on CPUs", "nvidia-smi": "a list of NVIDIA's GPUs"}


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def lines() -> Iterator[tuple[str, str]]:
    memory = psutil.virtual_memory()
    yield "GT", f"{__version__} on Python {platform.python_version()}, {platform.platform()}"
    yield "processor", f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    yield "memory", f"{amount(memory.available)} free of {amount(memory.total)}"
    yield "network", f"{socket.gethostname()}, reached by others at {outward_address()}"
    yield "sockets in", own_folder()
    yield "shared memory", "yes" if shm.supported() else "no: arrays are copied through sockets"
    yield "memory of peers", "yes" if process_memory.supported() else "no: collectives of one host go by Gloo or by mail"
    for package, what in PACKAGES.items():
        found = version(package)
        yield package, found or f"missing: {what}"
    for program, what in PROGRAMS.items():
        path = shutil.which(program)
        yield program, path or f"missing: {what}"
    yield from engines()
    yield from devices()
    for name in sorted(environment.VARIABLES):
        if os.environ.get(name) and "KEY" not in name:
            yield name, os.environ[name]


def engines() -> Iterator[tuple[str, str]]:
    """The backends on which workers compute here, and the reasons for the others."""
    known = registry()
    known.search()
    reasons = {name: known.engine_reason(name) for name, row in known.rows.items() if row.engine}
    usable = [name for name, reason in reasons.items() if reason is None]
    yield "engines", f"{', '.join(usable)} (default: {known.asked() or known.plain_default()})"
    for name, reason in reasons.items():
        if reason is not None:
            yield f"engine {name}", f"missing: {reason}"


def devices() -> Iterator[tuple[str, str]]:
    """GPUs, as PyTorch sees them."""
    if not version("torch"):
        return
    import torch

    if not torch.cuda.is_available():
        yield "GPU", "none that PyTorch can use: workers compute on the CPU"
        return
    for i in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(i)
        yield f"GPU {i}", f"{found.name}, {amount(found.total_memory)}, CUDA {torch.version.cuda}"


def report() -> str:
    return "\n".join(f"{name:<16} {said}" for name, said in lines())
