"""The backends GT knows, and which of them compute right numbers here.

A backend is available if a probe ran the right numbers through its library in this environment; importing proves
nothing. Probes run when first asked for, once a process. What a worker executes on a backend is the engines' matter.
"""

import importlib.util
import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gt import environment
from gt.backends import cuda, cudnn, custom, mps, probes
from gt.backends.facts import Found, Missing, Outcome
from gt.backends.memory import remembered

__all__ = [
    "cuda",
    "cudnn",
    "mps",
    "get_available_backends",
    "get_backend_info",
    "get_default_backend",
    "is_backend_available",
    "list_backends",
    "register_backend",
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
OF_TENSOR_OPS = {"cuda": "cuda", "opencl": "opencl", "cpp": "cpp", "numpy": "python"}  # their names in gt.tensor_ops


class Registry:
    """Rows and what their probes found. Each backend has its own lock, so one slow probe holds up nobody else."""

    def __init__(self, rows: tuple[Row, ...]):
        self.rows = {row.name: row for row in rows}
        self._locks = {row.name: threading.Lock() for row in rows}
        self._outcomes: dict[str, Outcome] = {}
        self._default: str | None = None
        self.running: str | None = None  # what the workers of this process's session compute with
        self._classes: dict[str, Any] = {}
        self._adding = threading.Lock()
        self._searched = False

    def name(self, asked: str) -> str:
        if not isinstance(asked, str):
            raise TypeError(f"a backend's name is a string, not {type(asked).__name__}")
        name = ALIASES.get(asked, asked)
        if name not in self.rows and ":" in name:
            self.add(Row(name, name, partial(custom.probe_path, name)))
        if name not in self.rows:
            self.search()
        if name not in self.rows:
            raise ValueError(f"no backend {asked!r}: known are {', '.join([*self.rows, *ALIASES])}, or a module:Class")
        return name

    def add(self, row: Row) -> None:
        with self._adding:
            if row.name not in self.rows:
                self._locks[row.name] = threading.Lock()
                self.rows = {**self.rows, row.name: row}

    def search(self) -> None:
        """Add the backends that installed packages bring, once."""
        if self._searched:
            return
        self._searched = True
        for name, point in custom.entry_points().items():
            if name in self.rows:
                warnings.warn(f"the entry point {point.value} is not used: a backend {name!r} is there", stacklevel=2)
            else:
                self.add(Row(name, name, partial(custom.probe_point, point)))

    def register(self, name: str, cls: Any) -> None:
        custom.checked(cls)
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ValueError(f"a backend's name is a word, not {name!r}")
        if name in ALIASES or name in self.rows and self._classes.get(name) is not cls:
            raise ValueError(f"a backend {name!r} is there already: choose another name")
        self._classes[name] = cls
        self.add(Row(name, name, partial(custom.probe, cls)))

    def custom_class(self, asked: str) -> Any | None:
        """The class of a backend that a user brought, or None for one of GT's."""
        name = self.name(asked)
        if name in self._classes:
            return self._classes[name]
        if ":" in name:
            return custom.imported(name)
        points = {} if any(row.name == name for row in ROWS) else custom.entry_points()
        return custom.checked(points[name].load()) if name in points else None

    def asked(self) -> str | None:
        """What was set or GT_BACKEND names, as another process can find it; nothing is probed."""
        name = self._default or environment.BACKEND.value() or None
        cls = self._classes.get(name) if name else None
        if cls is None or name in custom.entry_points():
            return name
        if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
            raise ValueError(
                f"backend {name!r} is a class of {cls.__module__}, where workers cannot find it: move it to a module of its own"
            )
        return f"{cls.__module__}:{cls.__qualname__}"

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
        if named := environment.BACKEND.value():
            return self.needed(named, "GT_BACKEND")
        return next(name for name in DEFAULTS if self.reason(name) is None)

    def set_default(self, asked: str) -> None:
        name = self.needed(asked, "set_default_backend")
        if self.running is not None and name != self.running:
            raise RuntimeError(
                f"GT is running with workers on {self.running}: call gt.set_default_backend({asked!r}) before the first op, "
                "or after gt.disconnect()"
            )
        self._default = name
        if name in OF_TENSOR_OPS:
            from gt import tensor_ops

            tensor_ops.set_backend(OF_TENSOR_OPS[name])

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
    _registry.search()
    return [name for name in _registry.rows if _registry.reason(name) is None]


def is_backend_available(name: str) -> bool:
    """Whether the backend computed the right numbers here. Raises ValueError for a name GT does not know."""
    return _registry.reason(name) is None


def get_default_backend() -> str:
    """What was set, else GT_BACKEND, else pytorch, or numpy where there is no torch."""
    return _registry.default()


def set_default_backend(name: str) -> None:
    """The backend of workers that GT starts by itself, and of `gt.tensor_ops` where it has it; call it before the first op.
    Raises ValueError if the backend is unknown or not available here, and RuntimeError where workers run on another."""
    _registry.set_default(name)


def session_began() -> None:
    """Workers were started on the backend asked for, and run until `session_ended`. Nothing is probed here."""
    plain = "pytorch" if importlib.util.find_spec("torch") else "numpy"
    _registry.running = _registry.name(_registry._default or environment.BACKEND.value() or plain)


def session_ended() -> None:
    _registry.running = None


def get_backend_info(name: str) -> dict[str, Any]:
    """Everything the probe found: library, device, sizes, dtypes, the self-test, and the reason if it failed."""
    return _registry.info(name)


def register_backend(name: str, cls: Any) -> None:
    """Add a backend of your own: a class with create_tensor, binary_op, unary_op and get_data (docs/worker-backends.md).

    It is known in this process and, if the class can be imported, to workers that this process starts. Others find it
    as an entry point of the group `gt.backends`, or by `--backend module:Class`.
    """
    _registry.register(name, cls)


def reason_unavailable(name: str) -> str | None:
    """Why the backend cannot be used here; None where it can."""
    return _registry.reason(name)


def known_name(name: str) -> str:
    """The backend's one name. Raises ValueError for a name GT does not know."""
    return _registry.name(name)


def custom_class(name: str) -> Any | None:
    """The class behind a backend that a user brought, or None for one of GT's own."""
    return _registry.custom_class(name)


def asked_for() -> str | None:
    """The backend that new workers shall have, as `--backend` takes it; None where nobody said."""
    return _registry.asked()


def list_backends(verbose: bool = False) -> list[dict[str, Any]]:
    """Print a table of all backends, with `verbose` their devices too; returns get_backend_info of each."""
    from gt.backends.table import show

    rows = all_infos()
    show(rows, verbose)
    return rows


def all_infos() -> list[dict[str, Any]]:
    """get_backend_info of every known backend, those of installed packages among them."""
    _registry.search()
    return [_registry.info(name) for name in _registry.rows]
