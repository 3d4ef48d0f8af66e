"""CUDA C++ compiled at run time: by NVRTC, which comes with PyTorch, or by nvcc; and its kernels, launched by the driver."""

from __future__ import annotations

import ctypes
import functools
import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 300
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
STATIC_SHARED = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
COOPERATIVE, EARLY = 2, 6  # CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION


class LaunchAttribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("x", "y", "z", "threads", "threads_y", "threads_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class CompileError(RuntimeError):
    """The CUDA C++ source could not be compiled."""


def find_nvrtc() -> ctypes.CDLL | None:
    folders = [Path(entry) for entry in sys.path if entry]
    found = [file for folder in folders for file in glob.glob(str(folder / "nvidia" / "*" / "lib" / "libnvrtc.so.*"))]
    found += glob.glob("/usr/local/cuda*/lib64/libnvrtc.so.*")
    for name in [*sorted(file for file in found if "builtins" not in file), "libnvrtc.so"]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@functools.lru_cache(maxsize=8)
def compile_cuda(source: str, architecture: str, defines: tuple[str, ...] = ()) -> bytes:
    """A cubin for `architecture`, such as sm_90. Raises CompileError."""
    flags = [*(f"-D{define}" for define in defines), "-std=c++17"]
    if nvrtc := find_nvrtc():
        return _by_nvrtc(nvrtc, source, [f"--gpu-architecture={architecture}", *flags])
    if nvcc := shutil.which("nvcc"):
        return _by_nvcc(nvcc, source, [f"-arch={architecture}", *flags])
    raise CompileError("neither NVRTC (pip install nvidia-cuda-nvrtc) nor nvcc was found")


def _by_nvrtc(nvrtc: ctypes.CDLL, source: str, flags: list[str]) -> bytes:
    program = ctypes.c_void_p()
    _checked(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"decode.cu", 0, None, None), "nvrtcCreateProgram"
    )
    try:
        options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(flags), options) != 0:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(f"NVRTC {' '.join(flags)}:\n{log.value.decode(errors='replace')}")
        _checked(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
        cubin = ctypes.create_string_buffer(size.value)
        _checked(nvrtc.nvrtcGetCUBIN(program, cubin), "nvrtcGetCUBIN")
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _by_nvcc(nvcc: str, source: str, flags: list[str]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file, made = Path(folder, "decode.cu"), Path(folder, "decode.cubin")
        file.write_text(source)
        command = [nvcc, *flags, "-cubin", str(file), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode != 0:
            raise CompileError(f"{' '.join(command)}:\n{done.stderr.strip()}")
        return made.read_bytes()


def _checked(code: int, call: str) -> None:
    if code != 0:
        raise RuntimeError(f"{call} failed with error {code}")


class GpuModule:
    """A compiled source on the current device. Arguments of kernels are ctypes values, structures and torch tensors."""

    def __init__(self, cubin: bytes) -> None:
        import torch

        torch.cuda.current_stream()  # torch's context is then the current one
        torch.zeros(1, device="cuda")
        self.driver = ctypes.CDLL("libcuda.so.1" if os.name == "posix" else "nvcuda")
        self.handle = ctypes.c_void_p()
        _checked(self.driver.cuModuleLoadData(ctypes.byref(self.handle), cubin), "cuModuleLoadData")
        self.functions: dict[str, ctypes.c_void_p] = {}

    def function(self, name: str) -> ctypes.c_void_p:
        if name not in self.functions:
            found = ctypes.c_void_p()
            _checked(self.driver.cuModuleGetFunction(ctypes.byref(found), self.handle, name.encode()), f"no kernel {name}:")
            self.functions[name] = found
        return self.functions[name]

    def static_shared(self, name: str) -> int:
        """Bytes of shared memory that the kernel's own variables take."""
        value = ctypes.c_int()
        _checked(self.driver.cuFuncGetAttribute(ctypes.byref(value), STATIC_SHARED, self.function(name)), "cuFuncGetAttribute")
        return value.value

    def allow_shared(self, name: str, count: int) -> None:
        _checked(self.driver.cuFuncSetAttribute(self.function(name), MOST_SHARED, count), f"{count} bytes of shared memory:")

    def launch(
        self, name: str, grid: Sequence[int], threads: int, *arguments: Any, shared: int = 0, attribute: int | None = None
    ) -> None:
        """On torch's current stream. COOPERATIVE: all blocks are on the GPU at one time, or the launch fails. EARLY: the kernel
        may start before the one before it has ended, and waits for that itself."""
        import torch

        held = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.cast(ctypes.byref(a), ctypes.c_void_p).value for a in held))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        x, y, z = (*grid, 1, 1)[:3]
        attributes = (LaunchAttribute * 1)(LaunchAttribute(id=attribute or 0, value=1))
        config = LaunchConfig(x, y, z, threads, 1, 1, shared, stream, attributes, attribute is not None)
        _checked(self.driver.cuLaunchKernelEx(ctypes.byref(config), self.function(name), pointers, None), f"launch of {name}")


def address(tensor: Any) -> int | None:
    """Of a tensor on the device; null for None."""
    return None if tensor is None else tensor.data_ptr()


def _argument(value: Any) -> Any:
    if isinstance(value, (ctypes._SimpleCData, ctypes.Structure)):
        return value
    if isinstance(value, int):
        return ctypes.c_int(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_void_p(address(value))
