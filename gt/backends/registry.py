"""The available backends and the default: decided here for workers' engines, gt.tensor_ops, PersistentKernel and `gt backends`.
A backend is available if its probe computed the right numbers; a probe runs once a process."""

from __future__ import annotations

import importlib.util
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gt import environment
from gt.backends import custom
from gt.backends.facts import Found, Missing, Outcome
from gt.backends.rows import ALIASES, ARRAYS, DEFAULTS, ROWS, BackendRow, named
from gt.config import Backends, read_backends


class Registry:
    """Rows and the results of their probes. Each backend has its own lock, so a slow probe delays no other."""

    def __init__(self, rows: tuple[BackendRow, ...]):
        self.rows = {row.name: row for row in rows}
        self._locks = {row.name: threading.Lock() for row in rows}
        self._outcomes: dict[str, Outcome] = {}
        self._default: str | None = None
        self.arrays_default: str | None = None  # the backend set for gt.tensor_ops, by its name there
        self.running: str | None = None  # the backend of the workers of this process's session
        self._classes: dict[str, Any] = {}
        self._adding = threading.Lock()
        self._searched = False

    def name(self, asked: str) -> str:
        if not isinstance(asked, str):
            raise TypeError(f"a backend's name: expected a string, got {type(asked).__name__}")
        name = ALIASES.get(asked, asked)
        if name not in self.rows and ":" in name:
            self.add(BackendRow(name, name, partial(custom.probe_path, name)))
        if name not in self.rows:
            self.search()
        if name not in self.rows:
            raise ValueError(f"no backend {asked!r}: known are {', '.join([*self.rows, *ALIASES])}, or a module:Class")
        return name

    def add(self, row: BackendRow) -> None:
        with self._adding:
            if row.name not in self.rows:
                self._locks[row.name] = threading.Lock()
                self.rows = {**self.rows, row.name: row}

    def search(self) -> None:
        """Add the backends of installed packages, once."""
        if self._searched:
            return
        self._searched = True
        for name, point in custom.entry_points().items():
            if name in self.rows:
                warnings.warn(f"the entry point {point.value} is not used: a backend {name!r} is registered", stacklevel=2)
            else:
                self.add(BackendRow(name, name, partial(custom.probe_point, point)))

    def register(self, name: str, cls: Any) -> None:
        custom.checked(cls)
        if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
            raise ValueError(f"a backend's name: expected one word, got {name!r}")
        if name in ALIASES or name in self.rows and self._classes.get(name) is not cls:
            raise ValueError(f"a backend {name!r} is registered already: choose another name")
        self._classes[name] = cls
        self.add(BackendRow(name, name, partial(custom.probe, cls)))

    def custom_class(self, asked: str) -> Any | None:
        """The class of a custom backend, or None for one of GT's."""
        name = self.name(asked)
        if name in self._classes:
            return self._classes[name]
        if ":" in name:
            return custom.imported(name)
        points = {} if any(row.name == name for row in ROWS) else custom.entry_points()
        return custom.checked(points[name].load()) if name in points else None

    def asked(self) -> str | None:
        """The backend set by the user, GT_BACKEND or GT_CONFIG, as a name that another process can resolve; nothing is
        probed."""
        name = self._default or environment.BACKEND.value() or _configured().backend
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
                except Exception as error:  # a library may fail in any way; the listing shows the reason
                    self._outcomes[name] = Missing(f"its probe raised {type(error).__name__}: {error}")
            return self._outcomes[name]

    def reason(self, asked: str) -> str | None:
        """The reason why the backend is not available, or None."""
        match self.outcome(asked):
            case Missing(reason):
                return reason
            case Found(passed=False, max_abs_err=error):
                return f"its numbers are wrong by {error:g}"
        return None

    def installed_reason(self, asked: str) -> str | None:
        """The reason why a worker cannot start on the backend. The reference engines, PyTorch and NumPy, only have to be
        installed; a worker probes the others."""
        row = self.rows[self.name(asked)]
        if row.package:
            return None if importlib.util.find_spec(row.package) else f"{row.package} is not installed"
        return self.reason(row.name)

    def engine_reason(self, asked: str) -> str | None:
        """The reason why it has no engine here."""
        name = self.name(asked)
        if reason := self.installed_reason(name):
            return reason
        if not self.rows[name].engine and self.custom_class(name) is None:
            return f"GT has no engine for {name}"
        return None

    def decode_reason(self, asked: str) -> str | None:
        """The reason why it cannot run a PersistentKernel here."""
        row = self.rows[self.name(asked)]
        if reason := self.reason(row.name):
            return reason
        return named(row.decode).reason_unavailable() if row.decode else "GT has no decode kernel for it yet"

    def arrays_reason(self, arrays: str) -> str | None:
        """The reason why gt.tensor_ops cannot use a backend, by its name there."""
        return self.reason(ARRAYS[arrays].row)

    def first(self, names: Iterable[str], reason: Callable[[str], str | None]) -> tuple[str | None, dict[str, str]]:
        """The first usable one of several backends, and the reasons why those before it are not."""
        refused: dict[str, str] = {}
        for name in map(self.name, names):
            why = reason(name)
            if why is None:
                return name, refused
            refused[name] = why
        return None, refused

    def plain_default(self) -> str:
        """The default without any setting: PyTorch, or NumPy if it is not installed."""
        return next(name for name in DEFAULTS if name in self.rows and self.installed_reason(name) is None)

    def default(self) -> str:
        """The backend that was set, else GT_BACKEND, else `backend:` of GT_CONFIG, else `plain_default`."""
        if self._default is not None:
            return self._default
        if named_ := environment.BACKEND.value():
            return self.needed(named_, "GT_BACKEND")
        if configured := _configured().backend:
            return self.needed(configured, "GT_CONFIG")
        return self.plain_default()

    def set_default(self, asked: str) -> None:
        name = self.needed(asked, "set_default_backend")
        if self.running is not None and name != self.running:
            raise RuntimeError(
                f"GT is running with workers on {self.running}: call gt.set_default_backend({asked!r}) before the first op, "
                "or after gt.disconnect()"
            )
        arrays = self.rows[name].arrays
        if arrays:
            self.set_arrays(arrays, "set_default_backend")
        self._default = name

    def set_arrays(self, arrays: str | None, who: str) -> None:
        """The backend of gt.tensor_ops, by its name there; None leaves it to the configuration."""
        if arrays is not None and (reason := self.arrays_reason(arrays)):
            raise RuntimeError(f"{who} requests the {arrays} backend, which is not available: {reason}")
        self.arrays_default = arrays

    def needed(self, asked: str, who: str) -> str:
        name = self.name(asked)
        if reason := self.reason(name):
            raise ValueError(f"{who} requests backend {asked!r}, which is not available: {reason}")
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


def _configured() -> Backends:
    """The settings of backends in GT_CONFIG."""
    path = environment.CONFIG.value()
    return read_backends(path) if path else Backends()


def fallbacks() -> tuple[str, ...]:
    """The backends of workers to use in order if the requested one is not available."""
    found = environment.FALLBACK_BACKENDS.value()
    return tuple(n.strip() for n in found.split(",") if n.strip()) if found else _configured().fallback_backends
