"""Modules: things with parameters, found wherever they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.creation import tensor


class Parameter(Tensor):
    """A tensor that a module learns."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = data if isinstance(data, Tensor) else tensor(data)
        super().__init__(source.data, requires_grad)


class Module:
    """Base of models. Parameters and modules kept as attributes, or in lists, tuples and dicts of those, are its own.

    >>> class Twice(gt.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> Twice()(gt.ones(2))
    tensor([2., 2.])
    """

    training: bool = True

    def __init__(self) -> None:
        self.training = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """A tensor that belongs to the module's state but is not learnt."""
        setattr(self, name, value)
        self.__dict__.setdefault("_buffers", {})[name] = persistent

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Modules directly inside, each once."""
        seen: set[int] = set()
        for name, thing in _inside(self.__dict__):
            if isinstance(thing, Module) and id(thing) not in seen:
                seen.add(id(thing))
                yield name, thing

    def children(self) -> Iterator[Module]:
        return (m for _, m in self.named_children())

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, by the path to it."""
        seen: set[int] = set()
        for where, module in self.named_modules(prefix):
            buffers = module.__dict__.get("_buffers", {})
            for name, thing in _inside(module.__dict__):
                if _is_parameter(thing) and name not in buffers and id(thing) not in seen:
                    seen.add(id(thing))
                    yield (f"{where}.{name}" if where else name), thing

    def parameters(self) -> Iterator[Tensor]:
        return (p for _, p in self.named_parameters())

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        for where, module in self.named_modules(prefix):
            for name in module.__dict__.get("_buffers", {}):
                value = getattr(module, name)
                if value is not None:
                    yield (f"{where}.{name}" if where else name), value

    def buffers(self) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers())

    def train(self, mode: bool = True) -> Module:
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters():
            p.grad = None

    def requires_grad_(self, wanted: bool = True) -> Module:
        for p in self.parameters():
            p.requires_grad = wanted
        return self

    def apply(self, function: Any) -> Module:
        for module in self.modules():
            function(module)
        return self

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and lasting buffers, by name."""
        state = {name: p.detach() for name, p in self.named_parameters()}
        for where, module in self.named_modules():
            for name, lasting in module.__dict__.get("_buffers", {}).items():
                value = getattr(module, name)
                if lasting and value is not None:
                    state[f"{where}.{name}" if where else name] = value.detach()
        return state

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        """Take values by name: tensors of GT, PyTorch or NumPy."""
        own: dict[str, Tensor] = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        missing, extra = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        if strict and (missing or extra):
            raise ValueError(f"this state does not fit {type(self).__name__}: missing {missing}, unexpected {extra}")
        for name in own.keys() & state.keys():
            value = state[name] if isinstance(state[name], Tensor) else tensor(state[name])
            if value.data.spec.shape != own[name].data.spec.shape:
                raise ValueError(f"{name} has shape {own[name].data.spec.shape}, the state brings {value.data.spec.shape}")
            own[name].data = value.to(own[name].data.spec.dtype).data

    def extra_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        inner = [f"({n}): {m!r}".replace("\n", "\n  ") for n, m in self.named_children()]
        name = type(self).__name__
        return f"{name}({self.extra_repr()})" if not inner else name + "(\n  " + "\n  ".join(inner) + "\n)"


def _is_parameter(thing: Any) -> bool:
    return isinstance(thing, Parameter) or (isinstance(thing, Tensor) and thing.requires_grad and thing.node is None)


def _inside(things: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Tensors and modules among attributes, and in lists, tuples and dicts of them."""
    for name, thing in things.items():
        if name.startswith("_") and not isinstance(thing, (Tensor, Module)):
            continue
        yield from _unfold(name, thing)


def _unfold(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, (Tensor, Module)):
        yield name, thing
    elif isinstance(thing, (list, tuple)):
        for i, inner in enumerate(thing):
            yield from _unfold(f"{name}.{i}", inner)
    elif isinstance(thing, dict):
        for key, inner in thing.items():
            yield from _unfold(f"{name}.{key}", inner)
