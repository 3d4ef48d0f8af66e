"""The backend of a call: the one set by the user, the environment or backend.json, or else the fastest here. The registry of
gt.backends knows which are available, and which was set."""

import importlib
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gt import backends, environment
from gt.backends.rows import ARRAYS
from gt.tensor_ops import config, speeds


def module(name: str) -> ModuleType:
    return importlib.import_module(ARRAYS[config.known(name)].module)


def used_by(taken: speeds.Speeds) -> set[str]:
    small = speeds.small_inputs(taken)
    return {speeds.fastest(taken)} | ({small[0]} if small else set())


class KernelChoice:
    """The backend in use. Environment and backend.json are read on first use; `set` overrules both."""

    def __init__(self, registry: Callable[[], backends.Registry] = backends.registry) -> None:
        self._lock = threading.RLock()
        self._registry = registry
        self._asked: str | None = None  # the setting at the time of the choice
        self._active: ModuleType | None = None
        self._free = False  # whether no backend was requested
        self._small: tuple[ModuleType, int] | None = None  # the backend for arrays of fewer elements
        self._why = ""

    def reason(self, name: str) -> str | None:
        """The reason why the backend cannot be used, or None."""
        return self._registry().arrays_reason(name)

    def set(self, name: str | None) -> None:
        with self._lock:
            self._registry().set_arrays(config.asked(name), "set_backend")
            self._active = None

    def _need(self, name: str, who: str) -> str:
        if reason := self.reason(name):
            raise RuntimeError(f"{who} requests the {name} backend, which is not available: {reason}")
        return name

    def active(self) -> ModuleType:
        active, asked = self._active, self._registry().arrays_default
        if active is not None and asked == self._asked:
            return active
        with self._lock:
            self._asked, self._free, self._small = asked, False, None
            name = self._asked_for() or self._fastest()
            self._active = module(name)
            return self._active

    def _asked_for(self) -> str | None:
        """The requested backend, which then gets all arrays; None if the choice is free."""
        if self._asked:
            self._why = "set_backend"
            return self._asked
        if named := config.asked(environment.TENSOR_OPS_BACKEND.value() or None):
            self._why = "GT_TENSOR_OPS_BACKEND"
            return self._need(named, "GT_TENSOR_OPS_BACKEND")
        path = config.find()
        wanted = config.load(path)
        if wanted.force_backend:
            self._why = f"force_backend in {path}"
            return self._need(wanted.force_backend, f"force_backend in {path}")
        if wanted.preferred_backend and self.reason(wanted.preferred_backend) is None:
            self._why = f"preferred_backend in {path}"
            return wanted.preferred_backend
        if wanted.backend_priority is None:
            return None
        self._why = f"backend_priority in {path}"
        for name in wanted.backend_priority:
            if self.reason(name) is None:
                return name
        raise RuntimeError(f"no backend of {', '.join(wanted.backend_priority)} in {path} is available")

    def _fastest(self) -> str:
        """The backend that is fastest for large arrays on the host, measured here once; small ones may use another."""
        self._free, self._why = True, "the fastest measured here"
        taken = speeds.kept()
        if taken is None or any(self.reason(name) for name in used_by(taken)):
            available = {name: module(name) for name in config.NAMES if self.reason(name) is None}
            taken = speeds.measure(available)
            speeds.keep(taken)
        if small := speeds.small_inputs(taken):
            self._small = module(small[0]), small[1]
        return speeds.fastest(taken)

    def pick(self, x: Any) -> ModuleType:
        """The backend for this array. A free choice may use another for small arrays, and for arrays on a GPU."""
        active = self.active()
        if not self._free:
            return active
        if getattr(x, "is_cuda", False):
            return active if self.reason("cuda") else module("cuda")
        if self._small is None:
            return active
        size = x.size if isinstance(x, np.ndarray) else getattr(x, "numel", lambda: 0)()
        return active if size >= self._small[1] else self._small[0]

    def info(self) -> dict[str, Any]:
        active = self.active()
        small = {"name": self._small[0].name, "below_elements": self._small[1]} if self._small else None
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
    """The result of the backend's own info function."""
    backend = module(name)
    asked = {"cuda": "get_cuda_info", "opencl": "get_opencl_info", "cpp": "get_optimization_info"}.get(name)
    return getattr(backend, asked)() if asked else {"numpy": np.__version__}


process = KernelChoice()
