"""Backends that users bring: a class that keeps tensors by number and computes with them. Registered by name, found as an
entry point of the group `gt.backends`, or named as `module:Class`. How one becomes an engine is the worker's matter."""

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

metadata = LazyImport("importlib.metadata")  # takes long to load, and only backends that are not GT's need it

GROUP = "gt.backends"
# What a class must have, with the parameters that GT passes by position.
METHODS = {
    "create_tensor": ("tensor_id", "data", "dtype", "shape"),
    "binary_op": ("result_id", "op", "left_id", "right_id"),
    "unary_op": ("result_id", "op", "input_id"),
    "get_data": ("tensor_id",),
}
# What it may have besides. Without them, creation and reshaping are NumPy's.
OPTIONAL = {
    "create_op": ("result_id", "op", "dtype", "shape", "numbers", "settings"),
    "reshape_op": ("result_id", "op", "input_id", "shape", "numbers", "settings"),
}


def checked(cls: Any) -> Any:
    """The class, if it has the methods."""
    if not inspect.isclass(cls):
        raise TypeError(f"a backend is a class, not {cls!r}")
    for name, parameters in METHODS.items():
        method = getattr(cls, name, None)
        if not callable(method):
            raise TypeError(f"{cls.__name__} lacks {name}({', '.join(parameters)}): a backend has {', '.join(METHODS)}")
    for name, parameters in OPTIONAL.items():
        if hasattr(cls, name) and not callable(getattr(cls, name)):
            raise TypeError(f"{name} of {cls.__name__} is no method: it is called as {name}({', '.join(parameters)})")
    return cls


def imported(path: str) -> Any:
    """The class that `module:Class` names. Raises ImportError, or TypeError where it is no backend."""
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
    """A module that the user named may lie in the working directory, which workers do not import from otherwise. It comes
    last, so that no file there takes the place of a library."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def probe(cls: Any) -> Outcome:
    """Whether it keeps an array and adds two of them rightly: the least that any backend can do."""
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
