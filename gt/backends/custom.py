"""Custom backends: a class that stores tensors by number and computes with them. It is registered by name, found as an entry
point of the group `gt.backends`, or named as `module:Class`. The worker makes an engine of it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.backends.facts import Found, Missing, Outcome, cpu_count, host_memory, operands, try_on
from gt.lazy_import import LazyImport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

metadata = LazyImport("importlib.metadata")  # slow to import, and only custom backends need it

GROUP = "gt.backends"
# The methods that a class must have, with the parameters that GT passes by position.
METHODS = {
    "create_tensor": ("tensor_id", "data", "dtype", "shape"),
    "binary_op": ("result_id", "op", "left_id", "right_id"),
    "unary_op": ("result_id", "op", "input_id"),
    "get_data": ("tensor_id",),
}
# Optional methods. Without them, NumPy creates and reshapes.
OPTIONAL = {
    "create_op": ("result_id", "op", "dtype", "shape", "numbers", "settings"),
    "reshape_op": ("result_id", "op", "input_id", "shape", "numbers", "settings"),
}


def checked(cls: Any) -> Any:
    """The class, if it has the methods; raises TypeError otherwise."""
    if not inspect.isclass(cls):
        raise TypeError(f"a backend: expected a class, got {cls!r}")
    for name, parameters in METHODS.items():
        method = getattr(cls, name, None)
        if not callable(method):
            raise TypeError(f"{cls.__name__} lacks {name}({', '.join(parameters)}): a backend has {', '.join(METHODS)}")
    for name, parameters in OPTIONAL.items():
        if hasattr(cls, name) and not callable(getattr(cls, name)):
            raise TypeError(f"{name} of {cls.__name__} is not callable: expected a method {name}({', '.join(parameters)})")
    return cls


def imported(path: str) -> Any:
    """The class of `module:Class`. Raises ImportError, or TypeError if it is no backend."""
    module, _, name = path.partition(":")
    with _working_directory_last():
        found: Any = importlib.import_module(module)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ImportError(f"module {module!r} has no {name!r}") from None
    return checked(found)


@contextlib.contextmanager
def _working_directory_last() -> Iterator[None]:
    """Import a module that may be in the working directory, from which workers do not import otherwise. The directory is last
    on the path, so that no file there replaces a library."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def probe(cls: Any) -> Outcome:
    """Whether the backend stores an array and adds two correctly: the minimum of any backend."""
    checked(cls)

    def total(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        backend = cls()
        backend.create_tensor(1, a, "float32", a.shape)
        backend.create_tensor(2, b, "float32", b.shape)
        backend.binary_op(3, "add", 1, 2)
        if not np.array_equal(backend.get_data(1), a):
            return np.full_like(a, np.inf)
        return np.asarray(backend.get_data(3))

    a = operands()[0]
    return Found(
        library=f"{cls.__module__}.{cls.__qualname__}",
        library_version=str(getattr(cls, "__version__", "-")),
        executes="the ops it has; others as those, or through NumPy",
        **dict(zip(("max_abs_err", "seconds"), try_on(total, a, a[::-1].copy(), a + a[::-1]))),  # type: ignore[arg-type]
        compute_units=cpu_count(),
        max_memory=host_memory(),
        dtypes=("float32",),
    )


def probe_path(path: str) -> Outcome:
    try:
        return probe(imported(path))
    except (ImportError, TypeError) as error:
        return Missing(str(error))


def probe_point(point: EntryPoint) -> Outcome:
    try:
        return probe(point.load())
    except (ImportError, AttributeError, TypeError) as error:
        return Missing(f"its entry point {point.value} cannot be loaded: {error}")
