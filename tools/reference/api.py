"""A page for each namespace: signature, description, rules from the op table, an example with its output."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import tempfile
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gt
from reference.examples import Example, Runner, forms
from reference.rules import rules


@dataclass(frozen=True)
class Namespace:
    """A module whose names users call."""

    module: str
    title: str
    call: str = ""  # how its names are written, where that is not the module's name
    base: str = ""  # a class of the module: its methods are the names

    @property
    def page(self) -> str:
        return (self.call or self.module).replace(".", "_").lower()

    @property
    def prefix(self) -> str:
        return self.call or self.module

    @cached_property
    def holder(self) -> Any:
        assert gt.zeros  # functions and methods arrive with the first that is used
        module = importlib.import_module(self.module)
        return getattr(module, self.base) if self.base else module

    def names(self) -> Iterator[tuple[str, Any]]:
        """Public names that are GT's own: functions, classes, and, of a class, its methods and properties."""
        listed = getattr(self.holder, "__all__", None) if self.module != "gt" else None  # it lists but those of other files
        for name in sorted(listed or dir(self.holder), key=str.lower):
            found = inspect.getattr_static(self.holder, name, None) if self.base else getattr(self.holder, name, None)
            if name.startswith("_") or isinstance(found, types.ModuleType):
                continue
            if isinstance(found, property) or callable(found) and public(found, self.module):
                yield name, found


def public(found: Any, module: str) -> bool:
    """Whether it is defined under the namespace, or in the functions of `gt`, and not only imported for use."""
    home = getattr(found, "__module__", None) or ""
    if module in ("gt", "gt.nn", "gt.nn.functional"):
        return home.startswith("gt")
    return home.startswith((module, "gt.client.functions", "gt.ops", "gt.nn.functional", "gt.optim", "gt.data", "gt.autograd"))


NAMESPACES = [
    Namespace("gt", "Functions", "gt"),
    Namespace("gt", "Methods of a tensor", "Tensor", "Tensor"),
    Namespace("gt.nn", "Modules"),
    Namespace("gt.nn.functional", "Functions of networks"),
    Namespace("gt.nn.init", "Initial values of parameters"),
    Namespace("gt.nn.utils", "Utilities for parameters"),
    Namespace("gt.optim", "Optimizers"),
    Namespace("gt.optim.lr_scheduler", "Schedules of rates"),
    Namespace("gt.linalg", "Linear algebra"),
    Namespace("gt.fft", "Fourier transforms"),
    Namespace("gt.special", "Special functions"),
    Namespace("gt.masked", "Reductions over unmasked elements"),
    Namespace("gt.sparse", "Sparse matrices"),
    Namespace("gt.distributions", "Probability distributions"),
    Namespace("gt.data", "Datasets and loaders"),
    Namespace("gt.autograd", "Gradients"),
    Namespace("gt.func", "Transforms of functions"),
    Namespace("gt.amp", "Mixed precision"),
    Namespace("gt.signal", "Signals"),
    Namespace("gt.tensor_ops", "Kernels called by themselves"),
    Namespace("gt.debug", "Debugging"),
    Namespace("gt.distributed", "One rank, for scripts that ask"),
    Namespace("gt.cuda", "Names of CUDA that scripts ask for"),
    Namespace("gt.accelerator", "Accelerators"),
    Namespace("gt.errors", "Errors"),
    Namespace("gt.testing", "For tests"),
]


def signature(name: str, found: Any) -> str:
    if isinstance(found, property):
        return name
    try:
        written = str(inspect.signature(found))
    except (TypeError, ValueError):
        return f"{name}(...)"
    return f"{name}{written}".replace("'", "").replace(" -> None", "")


def summary(found: Any) -> str:
    """The docstring without its examples, which are shown as they ran."""
    text = inspect.getdoc(found) or ""
    if isinstance(found, type) and found.__doc__ is None:
        text = ""
    return text.split(">>>")[0].strip()


def entry(namespace: Namespace, name: str, found: Any, example: Example | None) -> list[str]:
    lines = [f"## {name}", "", "```python", signature(f"{namespace.prefix}.{name}", found), "```", ""]
    lines += [text, ""] if (text := summary(found)) else []
    lines += rules(name) if not namespace.base else []
    if example:
        lines += ["```pycon", *example.text(), "```", ""]
    return lines


def api_page(namespace: Namespace) -> str:
    lines = [f"# {namespace.prefix}: {namespace.title.lower()}", "", *Runner.PREAMBLE, ""]
    for name, found, example in entries(namespace):
        lines += entry(namespace, name, found, example)
    return "\n".join(lines)


def entries(namespace: Namespace) -> Iterator[tuple[str, Any, Example | None]]:
    """Every name with the first of its forms that runs, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), gt.testing.cluster(1, "numpy"):
        runner = Runner()
        for name, found in namespace.names():
            yield name, found, runner.first(forms(namespace.prefix, name, found))
