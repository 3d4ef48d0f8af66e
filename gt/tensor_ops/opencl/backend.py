"""OpenCL through pyopencl: the device, the programs built for it, and calls on host arrays.

Memory is lent to the device in place, so a CPU device copies nothing. GPUs are preferred to CPU devices.
"""

import functools
import math
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np

name = "opencl"
unary, pairs = ("silu", "gelu_tanh", "gelu_erf"), ()  # the ops of `elementwise`, and those of two operands

_SOURCE = Path(__file__).parent / "kernels.cl"
_STORES = {"float32": "float", "float64": "double", "float16": "ushort", "bfloat16": "ushort"}
_WIDE = 16
_opening = threading.Lock()
_launching = threading.Lock()  # setting a kernel's arguments and launching it is one step


def _real(dtype: str) -> type[np.floating]:
    """The dtype in which kernels compute."""
    return np.float64 if dtype == "float64" else np.float32


class _Device:
    """One OpenCL device with its queue and its programs."""

    def __init__(self, cl: Any, device: Any):
        self.cl, self.device = cl, device
        self.context = cl.Context([device])
        self.queue = cl.CommandQueue(self.context)
        self.is_cpu = bool(device.type & cl.device_type.CPU)
        self.doubles = "cl_khr_fp64" in device.extensions
        self.numbers: dict[tuple[str, str], tuple] = {}
        # A CPU device runs a work-group in one thread: rows are then best read by one work-item, a few by each.
        self.row_groups = 8 * int(device.max_compute_units)
        self.row_items = 1 if self.is_cpu else min(256, 1 << (int(device.max_work_group_size).bit_length() - 1))

    @functools.cached_property
    def kernels(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for dtype in dtypes_of(self):
            options = ["-D", f"STORE={_STORES[dtype]}", "-D", dtype.upper(), "-cl-mad-enable"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # remarks of compilers; errors raise
                program = self.cl.Program(self.context, _SOURCE.read_text()).build(options)
            for op in (*unary, "rms_norm"):
                found[op, dtype] = self.cl.Kernel(program, op)
            real = np.dtype(_real(dtype))
            found["rms_norm", dtype].set_arg(9, self.cl.LocalMemory(self.row_items * real.itemsize))
        return found

    @functools.cached_property
    def in_place(self) -> bool:
        """Whether results appear in lent memory without mapping, found by a trial: mapping takes as long as waking threads."""
        if not self.is_cpu:
            return False
        x, out = np.ones(4096, np.float32), np.zeros(4096, np.float32)
        buffers = (self.lend(x, False), self.lend(out, True))
        self.launch("silu", "float32", x.size // _WIDE, None, buffers, (np.uint64(x.size),)).wait()
        return bool(out.all())

    def launch(self, op: str, dtype: str, items: int, group: int | None, buffers: tuple, numbers: tuple) -> Any:
        """Set the arguments: buffers, then numbers. A kernel keeps numbers, so unchanged ones are not set again, which saves
        time."""
        with _launching:
            kernel = self.kernels[op, dtype]
            for i, buffer in enumerate(buffers):
                kernel.set_arg(i, buffer)
            if self.numbers.get((op, dtype)) != numbers:
                for i, number in enumerate(numbers, len(buffers)):
                    kernel.set_arg(i, number)
                self.numbers[op, dtype] = numbers
            return self.cl.enqueue_nd_range_kernel(self.queue, kernel, (items,), group and (group,))

    def lend(self, array: np.ndarray, writes: bool) -> Any:
        flags = self.cl.mem_flags
        access = flags.WRITE_ONLY if writes else flags.READ_ONLY
        if array.flags.writeable:
            return self.cl.Buffer(self.context, access | flags.USE_HOST_PTR, hostbuf=array)
        return self.cl.Buffer(self.context, access | flags.COPY_HOST_PTR, hostbuf=array)

    def collect(self, done: Any, buffer: Any, out: np.ndarray) -> None:
        """Wait until the results are in `out`, whose memory the buffer borrows."""
        if self.in_place:
            done.wait()
            return
        mapped, _ = self.cl.enqueue_map_buffer(
            self.queue, buffer, self.cl.map_flags.READ, 0, (out.nbytes,), np.uint8, is_blocking=True
        )
        mapped.base.release(self.queue)
        self.queue.finish()


def dtypes_of(device: _Device) -> tuple[str, ...]:
    return tuple(d for d in _STORES if d != "float64" or device.doubles)


@functools.cache
def _found() -> _Device | str:
    """The best device, or the reason why there is none."""
    try:
        import pyopencl as cl
    except ImportError as error:
        return f"pyopencl cannot be imported: {error}"
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        return f"no OpenCL platform: {error}"
    if not devices:
        return "OpenCL has no device"
    ranked = sorted(devices, key=lambda d: (bool(d.type & cl.device_type.CPU), -d.max_compute_units))
    try:
        device = _Device(cl, ranked[0])
        assert device.kernels
    except cl.Error as error:
        return f"OpenCL device {ranked[0].name!r} cannot build the kernels: {error}"
    return device


def device() -> _Device:
    with _opening:
        found = _found()
    if isinstance(found, str):
        raise RuntimeError(found)
    return found


def reason_unavailable() -> str | None:
    with _opening:
        found = _found()
    return found if isinstance(found, str) else None


def __getattr__(attribute: str) -> Any:
    # The device's dtypes are known only once it is opened, and importing this module must not open it.
    if attribute not in ("dtypes", "on_device"):
        raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
    on = device()
    globals().update(dtypes=dtypes_of(on), on_device=not on.is_cpu)  # each call reads them
    return globals()[attribute]


def elementwise(op: str, x: np.ndarray, out: np.ndarray, dtype: str) -> None:
    on = device()
    buffers = on.lend(x, writes=False), on.lend(out, writes=True)
    done = on.launch(op, dtype, math.ceil(x.size / _WIDE), None, buffers, (np.uint64(x.size),))
    on.collect(done, buffers[1], out)


def rms_norm(
    x: np.ndarray, weight: np.ndarray, out: np.ndarray, eps: float, dtype: str, rstd: np.ndarray | None = None
) -> None:
    """`rstd`, if given, becomes 1 / sqrt(mean(x^2) + eps) of each row, in the weight's dtype."""
    on = device()
    rows, columns = x.shape
    target, kept = on.lend(out, True), None if rstd is None else on.lend(rstd, True)
    buffers = on.lend(x, False), on.lend(weight, False), target, kept
    each = math.ceil(rows / on.row_groups) if on.row_items == 1 else 1
    numbers = _numbers(dtype, columns, eps, rows, each)
    done = on.launch("rms_norm", dtype, math.ceil(rows / each) * on.row_items, on.row_items, buffers, numbers)
    on.collect(done, target, out)
    if kept is not None and rstd is not None:
        on.collect(done, kept, rstd)


@functools.lru_cache(64)
def _numbers(dtype: str, columns: int, eps: float, rows: int, each: int) -> tuple:
    real = _real(dtype)
    return np.uint64(columns), real(eps), real(math.sqrt(eps)), np.uint64(rows), np.uint64(each)


def get_opencl_info() -> dict[str, Any]:
    """The device in use and its platform. Raises RuntimeError, with the reason, if there is none."""
    on = device()
    return {
        "platform": on.device.platform.name.strip(),
        "version": on.device.version.strip(),
        "driver": on.device.driver_version.strip(),
        "device": on.device.name.strip(),
        "device_type": "CPU" if on.is_cpu else "GPU" if on.device.type & on.cl.device_type.GPU else "ACCELERATOR",
        "compute_units": on.device.max_compute_units,
        "max_memory": on.device.global_mem_size,
        "max_shared_memory": on.device.local_mem_size,
        "dtypes": list(dtypes_of(on)),
        "pyopencl": on.cl.VERSION_TEXT,
    }
