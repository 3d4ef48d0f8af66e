"""`module._parameters`, `_buffers` and `_modules`: a module's members by name, for scripts that use PyTorch's internals."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from gt.client.autograd import Tensor
from gt.nn.parameter import Buffer, Parameter


class Members(MutableMapping):
    """The members of one type. Writing or deleting an entry changes the module."""

    def __init__(self, module: Any, sort: type) -> None:
        self._module, self._sort = module, sort

    def _found(self) -> dict[str, Any]:
        if self._sort is Buffer:
            return {name: value for name, value, _ in self._module._own_buffers()}
        if self._sort is Parameter:
            return dict(self._module._own_parameters())
        return {name: thing for name, thing in self._module._members() if isinstance(thing, self._sort)}

    def __getitem__(self, name: str) -> Any:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def __setitem__(self, name: str, value: Any) -> None:
        if self._sort is Buffer and name not in self._found():
            self._module.register_buffer(name, value)
        else:
            self._module._place_of(name)[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._found():
            raise KeyError(name)
        del self._module._place_of(name)[name]
        self._module.__dict__.get("_registered", {}).pop(name, None)

    def __repr__(self) -> str:
        return repr(self._found())


def replaced(module: Any, name: str, value: Any) -> None:
    """Raise if an assignment would replace a parameter, a buffer or a module by another type."""
    before = module.__dict__.get(name)
    if isinstance(before, Parameter) and not isinstance(value, Parameter) and value is not None:
        raise TypeError(f"cannot assign a {type(value).__name__} to the parameter {name!r} of {type(module).__name__}: "
                        "assign a gt.nn.Parameter or None, or write into it with copy_() under no_grad()")  # fmt: skip
    if name in module.__dict__.get("_registered", ()) and value is not None and not isinstance(value, Tensor):
        raise TypeError(f"cannot assign a {type(value).__name__} to the buffer {name!r} of {type(module).__name__}: "
                        "assign a tensor or None")  # fmt: skip


def check_registered(module: Any, name: Any, value: Any, sort: type, known: bool) -> None:
    """Raise, as PyTorch does, where a member cannot be registered under a name. `known`: one of this sort has the name."""
    what = sort.__name__.lower()
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} is a string, not a {type(name).__name__}")
    if not name or "." in name:
        raise KeyError(f"the name of a {what} has a letter and no dot, unlike {name!r}")
    if not known and getattr(module, name, None) is not None:
        raise KeyError(f"attribute {name!r} already exists: it is no {what} of {type(module).__name__}")
    if value is not None and not isinstance(value, sort):
        raise TypeError(f"cannot register a {type(value).__name__} as the {what} {name!r}: expected a {sort.__name__} or None")
