"""Modules: things with parameters, found wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gt.client.autograd import Tensor
from gt.client.functions.create import tensor
from gt.client.functions.hooks import Hook
from gt.client.native import NATIVE
from gt.client.scope import HERE
from gt.client.writes import clear_grad, overwrite
from gt.errors import ArgumentError
from gt.nn.parameter import Buffer, Parameter
from gt.spec import DType, dtype_of


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


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
        scope = HERE.scope
        if scope is not None and scope.session.noted is not None:
            scope.session.noted.modules[id(self)] = self
        hooks = self.__dict__.get("_hooks")
        if not hooks:
            return self.forward(*args, **kwargs)
        for hook in [h for before, h in hooks if before]:
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        result = self.forward(*args, **kwargs)
        for hook in [h for before, h in hooks if not before]:
            changed = hook(self, args, result)
            result = result if changed is None else changed
        return result

    def _hook(self, before: bool, hook: Callable) -> Hook:
        hooks = self.__dict__.setdefault("_hooks", [])
        hooks.append((before, hook))
        return Hook(hooks, hooks[-1])

    def register_forward_pre_hook(self, hook: Callable) -> Hook:
        """Call `hook(module, args)` before each forward; what it returns, if anything, are the arguments instead."""
        return self._hook(True, hook)

    def register_forward_hook(self, hook: Callable) -> Hook:
        """Call `hook(module, args, result)` after each forward; what it returns, if anything, is the result instead."""
        return self._hook(False, hook)

    # What is inside

    def register_buffer(self, name: str, value: Tensor | None, persistent: bool = True) -> None:
        """A tensor that belongs to the module's state but is not learnt."""
        setattr(self, name, value)
        self.__dict__.setdefault("_buffers", {})[name] = persistent

    def register_parameter(self, name: str, value: Tensor | None) -> None:
        setattr(self, name, value)

    def add_module(self, name: str, module: Module | None) -> None:
        setattr(self, name, module)

    register_module = add_module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Modules directly inside, each once."""
        seen: set[int] = set()
        for name, thing in self._members():
            if isinstance(thing, Module) and id(thing) not in seen:
                seen.add(id(thing))
                yield name, thing

    def children(self) -> Iterator[Module]:
        return (m for _, m in self.named_children())

    def named_modules(
        self, memo: set | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all inside, each once, by the path to it."""
        memo = set() if memo is None else memo
        if id(self) in memo:
            return
        if remove_duplicate:
            memo.add(id(self))
        yield prefix, self
        for name, thing in self._members():
            if isinstance(thing, Module):
                yield from thing.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def _members(self) -> Iterator[tuple[str, Any]]:
        """Tensors and modules kept as attributes, by name."""
        return _inside(self.__dict__)

    def _own_parameters(self) -> Iterator[tuple[str, Tensor]]:
        buffers = self.__dict__.get("_buffers", {})
        return ((n, t) for n, t in self._members() if _is_parameter(t) and n not in buffers and not isinstance(t, Buffer))

    def _own_buffers(self) -> Iterator[tuple[str, Tensor, bool]]:
        for name, lasting in self.__dict__.get("_buffers", {}).items():
            value = getattr(self, name)
            if value is not None:
                yield name, value, lasting
        for name, value in self._members():
            if isinstance(value, Buffer) and name not in self.__dict__.get("_buffers", {}):
                yield name, value, value.persistent

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, by the path to it."""
        seen: set[int] = set()
        modules = self.named_modules(None, prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for where, module in modules:
            for name, p in module._own_parameters():
                if id(p) not in seen:
                    if remove_duplicate:
                        seen.add(id(p))
                    yield (f"{where}.{name}" if where else name), p

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        if NATIVE is not None and recurse and type(self).named_parameters is Module.named_parameters:
            found = NATIVE.parameters(self, Module, Parameter)
            if found is not NotImplemented:
                return iter(found)
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        for where, module in self.named_modules(None, prefix) if recurse else iter([(prefix, self)]):
            for name, value, _ in module._own_buffers():
                yield (f"{where}.{name}" if where else name), value

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers(recurse=recurse))

    def get_submodule(self, target: str) -> Module:
        """The module at a path such as `layers.0.attn`."""
        known = dict(self.named_modules())
        if target not in known:
            raise AttributeError(f"no module {target!r} in {type(self).__name__}: there are {', '.join(filter(None, known))}")
        return known[target]

    def get_parameter(self, target: str) -> Tensor:
        known = dict(self.named_parameters(remove_duplicate=False))
        if target not in known:
            raise AttributeError(f"no parameter {target!r} in {type(self).__name__}: there are {', '.join(known)}")
        return known[target]

    # What changes all of it

    def train(self, mode: bool = True) -> Module:
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters():
            clear_grad(p, set_to_none)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call a function with every module inside, then with this one."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def to(self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False) -> Module:
        """Floating-point parameters and buffers in another dtype. Devices are the dispatcher's business."""
        for a in args:
            dtype = a.dtype if isinstance(a, Tensor) else a if isinstance(a, DType) else dtype
        if dtype is not None:
            want = dtype_of(dtype)
            for t in [*self.parameters(), *self.buffers()]:
                if t.handle.spec.dtype.rank == 2:
                    t.handle = t.detach().to(want).handle
                    t.grad = None if t.grad is None else t.grad.to(want)
        return self

    def float(self) -> Module:
        return self.to(dtype="float32")

    def double(self) -> Module:
        return self.to(dtype="float64")

    def half(self) -> Module:
        return self.to(dtype="float16")

    def bfloat16(self) -> Module:
        return self.to(dtype="bfloat16")

    def cpu(self) -> Module:
        return self

    def cuda(self, device: Any = None) -> Module:
        return self

    # State

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """Parameters and lasting buffers, by PyTorch's names and in its order."""
        state: dict[str, Tensor] = {}
        for where, module in self.named_modules(None, prefix.rstrip("."), remove_duplicate=False):
            own = [*module._own_parameters(), *((n, b) for n, b, lasting in module._own_buffers() if lasting)]
            state.update({f"{where}.{name}" if where else name: t.detach() for name, t in own})
        return state

    def _state(self) -> dict[str, Tensor]:
        """The variables that a state dict is loaded into."""
        found: dict[str, Tensor] = {}
        for where, module in self.named_modules(remove_duplicate=False):
            own = [*module._own_parameters(), *((n, b) for n, b, lasting in module._own_buffers() if lasting)]
            found.update({f"{where}.{name}" if where else name: t for name, t in own})
        return found

    def load_state_dict(self, state: dict[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Take values by name: tensors of GT, PyTorch or NumPy."""
        own = self._state()
        keys = IncompatibleKeys([n for n in own if n not in state], [n for n in state if n not in own])
        if strict and (keys.missing_keys or keys.unexpected_keys):
            name = type(self).__name__
            raise ArgumentError(
                f"this state does not fit {name}: missing {keys.missing_keys}, unexpected {keys.unexpected_keys}"
            )
        for name, variable in own.items():
            if name in state:
                value = state[name] if isinstance(state[name], Tensor) else tensor(state[name])
                if value.handle.spec.shape != variable.handle.spec.shape:
                    raise ArgumentError(
                        f"{name} has shape {variable.handle.spec.shape}, the state brings {value.handle.spec.shape}"
                    )
                copied = value if assign else value.detach().to(variable.handle.spec.dtype).clone()
                overwrite(variable, copied.handle)
        return keys

    def _compiled_as(self, call: Any) -> Module:
        """What `gt.compile` makes of this module."""
        return CompiledModule(self, call)

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
    for name, thing in list(things.items()):
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


class CompiledModule(Module):
    """A module whose calls are captured and replayed (`gt.compile(model)`), and which is a module still. Parameters,
    state and modes are those of the module inside, under PyTorch's name for it: `_orig_mod`."""

    def __init__(self, module: Module, call: Any) -> None:
        super().__init__()
        self._orig_mod = module
        self._call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def train(self, mode: bool = True) -> Module:
        self._orig_mod.train(mode)
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        if name in ("_orig_mod", "_call"):
            raise AttributeError(name)
        try:
            return getattr(self._orig_mod, name)
        except AttributeError:
            return getattr(self._call, name)  # counts of captures and replays
