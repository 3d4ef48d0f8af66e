"""The backends GT knows, and which of them compute right numbers here.

A backend is available if a probe ran the right numbers through its library in this environment; importing proves
nothing. Probes run when first asked for, once a process. What a worker executes on a backend is the engines' matter.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gt.backends import probes
from gt.backends.facts import Found, Missing, Outcome
from gt.backends.memory import remembered

__all__ = [
    "get_available_backends",
    "get_backend_info",
    "get_default_backend",
    "is_backend_available",
    "list_backends",
    "set_default_backend",
]


class Row(NamedTuple):
    """A backend's names and how to find out about it."""

    name: str
    display_name: str
    probe: Callable[[], Outcome]


# In order of priority. The slow probes, which start a process of their own, are remembered between processes.
ROWS = (
    Row("cuda", "NVIDIA CUDA", probes.cuda),
    Row("triton", "Triton", probes.triton),
    Row("cudnn", "NVIDIA cuDNN", probes.cudnn),
    Row("mps", "Apple Metal", probes.mps),
    Row("cpp", "GT C++ kernels", probes.cpp),
    Row("opencl", "OpenCL", probes.opencl),
    Row("openmp", "OpenMP", probes.openmp),
    Row("mkl", "Intel MKL", partial(remembered, "mkl", "torch", probes.mkl)),
    Row("mkldnn", "oneDNN", partial(remembered, "mkldnn", "torch", probes.mkldnn)),
    Row("cpu", "CPU", probes.cpu),
    Row("numpy", "NumPy", probes.numpy),
    Row("pytorch", "PyTorch", probes.pytorch),
    Row("nki", "AWS Neuron", probes.nki),
)
ALIASES = {"onednn": "mkldnn"}
DEFAULTS = ("pytorch", "numpy")


class Registry:
    """Rows and what their probes found. Each backend has its own lock, so one slow probe holds up nobody else."""

    def __init__(self, rows: tuple[Row, ...]):
        self.rows = {row.name: row for row in rows}
        self._locks = {row.name: threading.Lock() for row in rows}
        self._outcomes: dict[str, Outcome] = {}
        self._default: str | None = None

    def name(self, asked: str) -> str:
        name = ALIASES.get(asked, asked)
        if name not in self.rows:
            raise ValueError(f"no backend {asked!r}: known are {', '.join([*self.rows, *ALIASES])}")
        return name

    def outcome(self, asked: str) -> Outcome:
        name = self.name(asked)
        with self._locks[name]:
            if name not in self._outcomes:
                try:
                    self._outcomes[name] = self.rows[name].probe()
                except Exception as error:  # a library may fail in any way; the registry then says so and goes on
                    self._outcomes[name] = Missing(f"its probe raised {type(error).__name__}: {error}")
            return self._outcomes[name]

    def reason(self, asked: str) -> str | None:
        """Why the backend is not available; None where it is."""
        match self.outcome(asked):
            case Missing(reason):
                return reason
            case Found(passed=False, max_abs_err=error):
                return f"its numbers are wrong by {error:g}"
        return None

    def default(self) -> str:
        if self._default is not None:
            return self._default
        if named := os.environ.get("GT_BACKEND"):
            return self.needed(named, "GT_BACKEND")
        return next(name for name in DEFAULTS if self.reason(name) is None)

    def set_default(self, asked: str) -> None:
        self._default = self.needed(asked, "set_default_backend")

    def needed(self, asked: str, who: str) -> str:
        name = self.name(asked)
        if reason := self.reason(name):
            raise ValueError(f"{who} asks for backend {asked!r}, which is not available: {reason}")
        return name

    def info(self, asked: str) -> dict[str, Any]:
        row, outcome, reason = self.rows[self.name(asked)], self.outcome(asked), self.reason(asked)
        found = outcome if isinstance(outcome, Found) else None
        test: dict[str, Any] = {"passed": reason is None, "max_abs_err": None, "seconds": None}
        if found:
            test |= {"max_abs_err": found.max_abs_err, "seconds": found.seconds}
        return {
            "name": row.name,
            "display_name": row.display_name,
            "available": reason is None,
            "reason": reason,
            "library": found.library if found else None,
            "library_version": found.library_version if found else None,
            "device_count": found.device_count if found else 0,
            "compute_capability": found.compute_capability if found else 0,
            "compute_units": found.compute_units if found else 0,
            "max_memory": found.max_memory if found else 0,
            "max_shared_memory": found.max_shared_memory if found else 0,
            "dtypes": list(found.dtypes) if found else [],
            "executes": found.executes if found else None,
            "self_test": test,
        }


_registry = Registry(ROWS)


def get_available_backends() -> list[str]:
    """Names of the backends that work here, in a fixed order of priority."""
    return [name for name in _registry.rows if _registry.reason(name) is None]


def is_backend_available(name: str) -> bool:
    """Whether the backend computed the right numbers here. Raises ValueError for a name GT does not know."""
    return _registry.reason(name) is None


def get_default_backend() -> str:
    """What was set, else GT_BACKEND, else pytorch, or numpy where there is no torch."""
    return _registry.default()


def set_default_backend(name: str) -> None:
    """Raises ValueError if the backend is unknown or not available here."""
    _registry.set_default(name)


def get_backend_info(name: str) -> dict[str, Any]:
    """Everything the probe found: library, device, sizes, dtypes, the self-test, and the reason if it failed."""
    return _registry.info(name)


def list_backends(verbose: bool = False) -> list[dict[str, Any]]:
    """Print a table of all backends, with `verbose` their devices too; returns get_backend_info of each."""
    from gt.backends.table import show

    rows = [_registry.info(name) for name in _registry.rows]
    show(rows, verbose)
    return rows
