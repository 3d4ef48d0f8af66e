"""Containers of modules and parameters, in order or by name. Their members have PyTorch's names: "0", "1", ... or the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from gt.client.autograd import Tensor
from gt.nn.members import check_registered
from gt.nn.module import Module, Parameter


class _Kept(Module):
    """A container with its members in `_kept`, by name, besides attributes."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, Any] = {}

    def _members(self) -> Iterator[tuple[str, Any]]:
        yield from [(n, t) for n, t in self._kept.items() if isinstance(t, (Tensor, Module))]
        yield from super()._members()

    def _place_of(self, name: str) -> dict[str, Any]:
        return self._kept if name in self._kept else self.__dict__

    def add_module(self, name: str, module: Module | None) -> None:
        check_registered(self, name, module, Module, name in self._kept)
        self._kept[name] = module

    register_module = add_module

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__.get("_kept", {})
        if name in kept:
            return kept[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _keeps(self, name: str, thing: Any) -> bool:
        """Whether an attribute of this name is kept in order with the others."""
        return name in self.__dict__.get("_kept", ())

    def __setattr__(self, name: str, value: Any) -> None:
        if self._keeps(name, value):
            self._kept[name] = self._wrap(value)
        else:
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__.get("_kept", ()):
            del self._kept[name]
        else:
            super().__delattr__(name)

    def _wrap(self, thing: Any) -> Any:
        return thing

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Any) -> bool:
        return key in self._kept


class _Row(_Kept):
    """A container with members in order."""

    def _place(self, index: int) -> str:
        n = len(self._kept)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range for {n} members")
        return list(self._kept)[index]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])  # type: ignore[call-arg]
        return self._kept[self._place(index)]

    def __setitem__(self, index: int, thing: Any) -> None:
        self._kept[self._place(index)] = self._wrap(thing)

    def __delitem__(self, index: Any) -> None:
        items = list(self)
        del items[index]
        self._kept = {str(i): t for i, t in enumerate(items)}

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._kept.values()))

    def __contains__(self, thing: Any) -> bool:
        return any(t is thing for t in self._kept.values())

    def append(self, thing: Any) -> Any:
        self._kept[str(len(self._kept))] = self._wrap(thing)
        return self

    def extend(self, things: Iterable[Any]) -> Any:
        for thing in list(things):
            self.append(thing)
        return self

    def insert(self, index: int, thing: Any) -> Any:
        items = list(self)
        items.insert(index, self._wrap(thing))
        self._kept = {str(i): t for i, t in enumerate(items)}
        return self

    def pop(self, index: int = -1) -> Any:
        thing = self[index]
        del self[index]
        return thing


class _OfModules(_Kept):
    """Every module that is an attribute is kept."""

    def _keeps(self, name: str, thing: Any) -> bool:
        return isinstance(thing, Module) or super()._keeps(name, thing)

    def _place_of(self, name: str) -> dict[str, Any]:
        return self.__dict__ if name in self.__dict__ else self._kept

    def _wrap(self, thing: Any) -> Any:
        if thing is not None and not isinstance(thing, Module):
            raise TypeError(f"cannot keep a {type(thing).__name__} in {type(self).__name__}: expected a Module")
        return thing


class Sequential(_OfModules, _Row):
    """Modules in sequence.

    >>> gt.nn.Sequential(gt.nn.Flatten(), gt.nn.ReLU())(gt.tensor([[[-1.0, 2.0]]]))
    tensor([[0., 2.]])
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], dict):
            for name, module in args[0].items():
                self.add_module(name, module)
        else:
            for module in args:
                self.append(module)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Sequential(dict(list(self._kept.items())[index]))
        return self._kept[self._place(index)]

    def forward(self, input: Any) -> Any:
        for module in self._kept.values():
            input = module(input)
        return input


class ModuleList(_OfModules, _Row):
    """A list of modules, called by their owner."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    __iadd__ = _Row.extend

    def __repr__(self) -> str:
        """Equal modules in a row are one line: `(0-2): 3 x Linear(...)`."""
        lines = []
        for text, run in groupby(enumerate(self), lambda pair: repr(pair[1])):
            first, *rest = (i for i, _ in run)
            lines.append(f"({first}-{rest[-1]}): {len(rest) + 1} x {text}" if rest else f"({first}): {text}")
        inner = "\n".join(lines).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {inner}\n)" if lines else f"{type(self).__name__}()"


class ParameterList(_Row):
    """A list of parameters; plain tensors become parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def _wrap(self, thing: Any) -> Any:
        return Parameter(thing) if isinstance(thing, Tensor) and not isinstance(thing, Parameter) else thing

    __iadd__ = _Row.extend

    def extra_repr(self) -> str:
        return ", ".join(f"({n}): {t.dtype.name} {t.shape}" for n, t in self._kept.items() if isinstance(t, Tensor))


class _Named(_Kept):
    """A container with members by key."""

    def __getitem__(self, key: str) -> Any:
        return self._kept[key]

    def __setitem__(self, key: str, thing: Any) -> None:
        self._kept[key] = self._wrap(thing)

    def __delitem__(self, key: str) -> None:
        del self._kept[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._kept))

    def keys(self) -> Iterable[str]:
        return self._kept.keys()

    def values(self) -> Iterable[Any]:
        return self._kept.values()

    def items(self) -> Iterable[tuple[str, Any]]:
        return self._kept.items()

    def pop(self, key: str) -> Any:
        return self._kept.pop(key)

    def clear(self) -> None:
        self._kept.clear()

    def update(self, things: Any) -> None:
        for key, thing in things.items() if hasattr(things, "items") else things:
            self[key] = thing


class ModuleDict(_OfModules, _Named):
    """Modules by name, called by their owner."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        self.update(modules or {})


class ParameterDict(_Named):
    """Parameters by name; plain tensors become parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def get(self, key: str, default: Any = None) -> Any:
        return self._kept.get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self._kept:
            self[key] = default
        return self._kept[key]

    def popitem(self) -> tuple[str, Any]:
        return self._kept.popitem()

    def copy(self) -> ParameterDict:
        return ParameterDict(self._kept)

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        return ParameterDict(dict.fromkeys(keys, default))

    def _wrap(self, thing: Any) -> Any:
        return Parameter(thing) if isinstance(thing, Tensor) and not isinstance(thing, Parameter) else thing
