"""Parameters computed from others: after `register_parametrization(module, "weight", f)`, `module.weight` is `f(original)`,
computed at each use, with gradients to the original."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gt.client.autograd import Tensor
from gt.client.grad_mode import no_grad
from gt.nn.containers import ModuleDict
from gt.nn.module import Module, Parameter


class _Cache:
    """Values of parametrized tensors inside `cached()`, by module and name."""

    depth = 0
    values: dict[tuple[int, str], Tensor] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Inside it each parametrized tensor is computed once."""
    _Cache.depth += 1
    try:
        yield
    finally:
        _Cache.depth -= 1
        if not _Cache.depth:
            _Cache.values.clear()


class ParametrizationList(Module):
    """A chain of functions, and the original: `original`, or `original0`, `original1`, ... if an inverse returns several."""

    def __init__(self, modules: list[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__()
        self.functions = list(modules)
        self.unsafe = unsafe
        value: Any = original
        with no_grad():
            for module in reversed(self.functions):
                inverse = getattr(module, "right_inverse", None)
                value = inverse(value) if inverse is not None else value
        self.is_tensor = isinstance(value, Tensor)
        trained = original.requires_grad
        if self.is_tensor:
            self.original = Parameter(value.detach(), trained)
        else:
            self.ntensors = len(value)
            for i, part in enumerate(value):
                setattr(self, f"original{i}", Parameter(part.detach(), trained))

    def _members(self) -> Iterator[tuple[str, Any]]:
        """Functions are numbered, as in PyTorch's state dicts: `parametrizations.weight.0`."""
        yield from ((str(i), function) for i, function in enumerate(self.functions) if isinstance(function, Module))
        yield from super()._members()

    def __len__(self) -> int:
        return len(self.functions)

    def __getitem__(self, index: int) -> Module:
        return self.functions[index]

    def forward(self) -> Tensor:
        first, *rest = self.functions
        value = (
            first(self.original) if self.is_tensor else first(*(getattr(self, f"original{i}") for i in range(self.ntensors)))
        )
        for function in rest:
            value = function(value)
        return value


def _lists(module: Any) -> ModuleDict:
    """The module's parametrizations, by the name of the tensor."""
    return module.parametrizations


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    lists = module.__dict__.get("parametrizations")
    return lists is not None and (tensor_name in lists if tensor_name is not None else len(lists) > 0)


def register_parametrization(module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False) -> Module:
    """From now on `module.tensor_name` is computed by the parametrization."""
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        found: Any = _lists(module)[tensor_name]
        functions = [*found.functions, parametrization]
        original = remove_parametrizations(module, tensor_name, leave_parametrized=True).__dict__[tensor_name]
        return _install(module, tensor_name, functions, original, unsafe, found)
    original = module.__dict__.get(tensor_name)
    if not isinstance(original, Tensor):
        raise ValueError(f"{type(module).__name__} has no parameter or buffer {tensor_name!r}")
    return _install(module, tensor_name, [parametrization], original, unsafe)


def _install(
    module: Module,
    name: str,
    functions: list[Module],
    original: Tensor,
    unsafe: bool,
    before: ParametrizationList | None = None,
) -> Module:
    made = ParametrizationList(functions[-1:] if before is not None else functions, original, unsafe)
    if before is not None:  # its originals stay; the new function comes last
        for key in [k for k in before.__dict__ if k.startswith("original")]:
            made.__dict__[key] = before.__dict__[key]
        made.functions, made.is_tensor = functions, before.is_tensor
        made.__dict__.update({k: before.__dict__[k] for k in ("ntensors",) if k in before.__dict__})
    found = made()
    if not unsafe and (found.shape != original.shape or found.dtype is not original.dtype):
        raise ValueError(f"a parametrization keeps shape and dtype: {tuple(original.shape)} of {original.dtype} became "
                         f"{tuple(found.shape)} of {found.dtype}; unsafe=True allows it")  # fmt: skip
    if not is_parametrized(module):
        own = type(module)
        module.__class__ = type(f"Parametrized{own.__name__}", (own,), {"__module__": own.__module__, "_plain": own})
        module.__dict__["parametrizations"] = ModuleDict()
    del module.__dict__[name]
    _lists(module)[name] = made
    setattr(type(module), name, property(lambda self: _value(self, name), lambda self, value: _assign(self, name, value)))
    return module


def _value(module: Module, name: str) -> Tensor:
    if not _Cache.depth:
        return _lists(module)[name]()
    key = id(module), name
    if key not in _Cache.values:
        _Cache.values[key] = _lists(module)[name]()
    return _Cache.values[key]


def _assign(module: Module, name: str, value: Tensor) -> None:
    """Originals from which this value is computed, by the functions' right inverses."""
    found: Any = _lists(module)[name]
    with no_grad():
        for function in reversed(found.functions):
            inverse = getattr(function, "right_inverse", None)
            if inverse is None:
                raise RuntimeError(f"{type(function).__name__} has no right_inverse: {name} cannot be assigned")
            value = inverse(value)
        for own, part in zip(_originals(found), [value] if isinstance(value, Tensor) else value):
            own.copy_(part)


def _originals(found: ParametrizationList) -> list[Tensor]:
    return [found.original] if found.is_tensor else [getattr(found, f"original{i}") for i in range(found.ntensors)]


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make `module.tensor_name` a plain parameter again: with the value it had, or with the original."""
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"{type(module).__name__} has no parametrization of {tensor_name!r}")
    found: Any = _lists(module)[tensor_name]
    if not leave_parametrized and not found.is_tensor:
        raise ValueError(f"{tensor_name} has several originals: leave_parametrized=False cannot choose one")
    value = found().detach() if leave_parametrized else found.original.detach()
    del _lists(module)[tensor_name]
    delattr(type(module), tensor_name)
    if not len(_lists(module)):
        del module.__dict__["parametrizations"]
        module.__class__ = type(module)._plain  # type: ignore[attr-defined]
    setattr(module, tensor_name, Parameter(value, _originals(found)[0].requires_grad))
    return module
