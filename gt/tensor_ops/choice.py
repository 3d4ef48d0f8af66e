"""Which backend a call runs on: by what was set, environment, backend.json, availability and the input's size."""

import importlib
import threading
import time
from types import ModuleType
from typing import Any

import numpy as np

from gt import environment
from gt.tensor_ops import calls, config
from gt.tensor_ops.check import SelfTest, self_test

MODULES = {
    "cuda": "gt.tensor_ops.cuda.backend",
    "opencl": "gt.tensor_ops.opencl.backend",
    "cpp": "gt.tensor_ops.cpp.backend",
    "python": "gt.tensor_ops.python",
}
SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 24)


def module(name: str) -> ModuleType:
    return importlib.import_module(MODULES[config.known(name)])


def worthwhile(device: Any, host: Any, sizes: tuple[int, ...] = SIZES, clock: Any = time.perf_counter) -> float:
    """The number of elements from which moving an array to the device and back pays, measured with silu.

    Infinity where it does not pay at any of the sizes.
    """
    for size in sizes:
        x = np.full(size, 0.5, dtype=np.float32)
        took = {}
        for backend in (device, host):
            calls.silu(backend, x)
            best = float("inf")
            for _ in range(3):
                began = clock()
                calls.silu(backend, x)
                best = min(best, clock() - began)
            took[backend.name] = best
        if took[device.name] < took[host.name]:
            return size
    return float("inf")


class Choice:
    """The backend in use. Environment and backend.json are read on first use; `set` overrules both."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tests: dict[str, SelfTest | str] = {}
        self._asked: str | None = None
        self._active: ModuleType | None = None
        self._host: ModuleType | None = None
        self._pays_from = 0.0
        self._why = ""

    def tested(self, name: str) -> SelfTest | str:
        """The self-test's outcome, or why there could be none. Runs once for each backend."""
        with self._lock:
            if name not in self._tests:
                backend = module(name)
                self._tests[name] = backend.reason_unavailable() or self_test(backend)
            return self._tests[name]

    def reason(self, name: str) -> str | None:
        """Why the backend cannot be used; None where it can."""
        match self.tested(name):
            case SelfTest(passed=True):
                return None
            case SelfTest(max_abs_err=error):
                return f"its self-test was off by {error:g}"
            case str(reason):
                return reason

    def set(self, name: str | None) -> None:
        with self._lock:
            asked = config.asked(name)
            if asked:
                self._need(asked, "set_backend")
            self._asked, self._active = asked, None

    def _need(self, name: str, who: str) -> str:
        if reason := self.reason(name):
            raise RuntimeError(f"{who} asks for the {name} backend, which is not available: {reason}")
        return name

    def active(self) -> ModuleType:
        active = self._active
        if active is not None:
            return active
        with self._lock:
            name, free = self._decide()
            chosen = module(name)
            # Only a free choice may go elsewhere for small arrays; a backend that was asked for gets all of them.
            self._host = None
            if free and chosen.on_device:
                self._host = module("python" if self.reason("cpp") else "cpp")
                self._pays_from = worthwhile(chosen, self._host)
            self._active = chosen
            return chosen

    def _decide(self) -> tuple[str, bool]:
        """The backend's name, and whether it was found rather than asked for."""
        if self._asked:
            self._why = "set_backend"
            return self._asked, False
        if named := config.asked(environment.TENSOR_OPS_BACKEND.value() or None):
            self._why = "GT_TENSOR_OPS_BACKEND"
            return self._need(named, "GT_TENSOR_OPS_BACKEND"), False
        path = config.find()
        wanted = config.load(path)
        if wanted.force_backend:
            self._why = f"force_backend in {path}"
            return self._need(wanted.force_backend, f"force_backend in {path}"), False
        if wanted.preferred_backend and self.reason(wanted.preferred_backend) is None:
            self._why = f"preferred_backend in {path}"
            return wanted.preferred_backend, True
        self._why = f"backend_priority in {path}"
        for name in self._order(wanted.backend_priority):
            if self.reason(name) is None:
                return name, True
        raise RuntimeError(f"no backend of {', '.join(wanted.backend_priority)} in {path} is available")

    def _order(self, priority: tuple[str, ...]) -> tuple[str, ...]:
        """An OpenCL device that is the CPU itself comes after C++, unless the user ordered the backends."""
        if priority != config.NAMES or self.reason("opencl") or module("opencl").on_device:
            return priority
        return ("cuda", "cpp", "opencl", "python")

    def pick(self, x: Any) -> ModuleType:
        """The backend for this array: the active one, or the CPU's for an array too small to be moved."""
        active = self.active()
        if self._host is None or getattr(x, "is_cuda", False):
            return active
        size = x.size if isinstance(x, np.ndarray) else getattr(x, "numel", lambda: 0)()
        return active if size >= self._pays_from else self._host

    def info(self) -> dict[str, Any]:
        active = self.active()
        small = {"name": self._host.name, "below_elements": self._pays_from} if self._host else None
        return {
            "backend": active.name,
            "chosen_by": self._why,
            "small_inputs": small,
            "available": [name for name in config.NAMES if self.reason(name) is None],
            "unavailable": {name: reason for name in config.NAMES if (reason := self.reason(name))},
            "dtypes": list(active.dtypes),
            "details": details(active.name),
        }


def details(name: str) -> dict[str, Any]:
    """What the backend's own info function says."""
    backend = module(name)
    asked = {"cuda": "get_cuda_info", "opencl": "get_opencl_info", "cpp": "get_optimization_info"}.get(name)
    return getattr(backend, asked)() if asked else {"numpy": np.__version__}


process = Choice()
