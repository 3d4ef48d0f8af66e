"""Modules and their parameters, buffers and submodules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gt.client.autograd import Tensor
from gt.client.compile import compile as captured
from gt.client.native import NATIVE
from gt.client.scope import HERE
from gt.client.writes import clear_grad
from gt.nn.members import Members, check_registered, replaced
from gt.nn.module_hooks import Hooked
from gt.nn.module_state import IncompatibleKeys, collect, load, no_state
from gt.nn.parameter import Buffer, Parameter
from gt.spec import DType, dtype_of


class Module(Hooked):
    """The base class of models. Attributes that are parameters, buffers or modules are its members; those in plain lists,
    tuples and dicts are not, as in PyTorch: use `ModuleList`, `ModuleDict`, `ParameterList` or `ParameterDict`.

    >>> class Twice(gt.nn.Module):
    ...     def forward(self, x):
    ...         return x * 2
    >>> Twice()(gt.ones(2))
    tensor([2., 2.])
    """

    training: bool = True

    def __init__(self) -> None:
        self.training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scope = HERE.scope
        if scope is not None and scope.session.noted is not None:
            scope.session.noted.modules[id(self)] = self
        if not self.__dict__.get("_hooks"):
            return self.forward(*args, **kwargs)
        return self._call_with_hooks(args, kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        replaced(self, name, value)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self.__dict__.get("_registered", {}).pop(name, None)

    # Members

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is part of the module's state but not a parameter."""
        known = name in self.__dict__.get("_registered", ()) or isinstance(self.__dict__.get(name), Buffer)
        check_registered(self, name, tensor, Tensor, known)
        setattr(self, name, tensor)
        self.__dict__.setdefault("_registered", {})[name] = persistent

    _parameters = property(lambda self: Members(self, Parameter))
    _buffers = property(lambda self: Members(self, Buffer))
    _modules = property(lambda self: Members(self, Module))

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        check_registered(self, name, param, Parameter, isinstance(self.__dict__.get(name), Parameter))
        setattr(self, name, param)

    def add_module(self, name: str, module: Module | None) -> None:
        check_registered(self, name, module, Module, isinstance(self.__dict__.get(name), Module))
        setattr(self, name, module)

    register_module = add_module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules, each once."""
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
        """This module and all submodules, each once, by path."""
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
        """The attributes that are tensors or modules, by name."""
        return ((name, thing) for name, thing in list(self.__dict__.items()) if isinstance(thing, (Tensor, Module)))

    def _place_of(self, name: str) -> dict[str, Any]:
        """The dictionary that has the member of this name."""
        return self.__dict__

    def _own_parameters(self) -> Iterator[tuple[str, Tensor]]:
        buffers = self.__dict__.get("_registered", {})
        return ((n, t) for n, t in self._members() if isinstance(t, Parameter) and n not in buffers)

    def _own_buffers(self) -> Iterator[tuple[str, Tensor, bool]]:
        registered = self.__dict__.get("_registered", {})
        for name, lasting in registered.items():
            value = getattr(self, name)
            if value is not None:
                yield name, value, lasting
        for name, value in self._members():
            if isinstance(value, Buffer) and name not in registered:
                yield name, value, value.persistent

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every parameter once, by path."""
        return self._named_tensors(lambda module: module._own_parameters(), prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        if NATIVE is not None and recurse and type(self).named_parameters is Module.named_parameters:
            found = NATIVE.parameters(self, Module, Parameter)
            if found is not NotImplemented:
                return iter(found)
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Every buffer once, by path."""
        own = lambda module: ((name, value) for name, value, _ in module._own_buffers())  # noqa: E731
        return self._named_tensors(own, prefix, recurse, remove_duplicate)

    def _named_tensors(
        self, own: Callable[[Module], Iterable[tuple[str, Tensor]]], prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors `own(module)` of this module and its submodules, each once, by path."""
        seen: set[int] = set()
        modules = self.named_modules(None, prefix, remove_duplicate) if recurse else iter([(prefix, self)])
        for where, module in modules:
            for name, value in own(module):
                if id(value) not in seen:
                    if remove_duplicate:
                        seen.add(id(value))
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

    def get_buffer(self, target: str) -> Tensor:
        known = dict(self.named_buffers(remove_duplicate=False))
        if target not in known:
            raise AttributeError(f"no buffer {target!r} in {type(self).__name__}: there are {', '.join(known)}")
        return known[target]

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace the module at a path."""
        path, _, last = target.rpartition(".")
        owner = self.get_submodule(path) if path else self
        if strict and last not in dict(owner._members()):
            raise AttributeError(f"no module {target!r} in {type(self).__name__}")
        owner.add_module(last, module)

    # Changes of all members

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
        """Call a function with every submodule, then with this one."""
        for module in self.children():
            module.apply(function)
        function(self)
        return self

    def to(
        self, *args: Any, dtype: Any = None, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> Module:
        """Cast floating-point parameters and buffers to a dtype. A device has no effect: the dispatcher places tensors."""
        for a in args:
            dtype = a.dtype if isinstance(a, Tensor) else a if isinstance(a, DType) else dtype
        if dtype is not None:
            want = dtype_of(dtype)
            for t in [*self.parameters(), *self.buffers()]:
                if t.handle.spec.dtype.rank == 2:
                    t.handle = t.detach().to(want).handle
                    if isinstance(t.grad, Tensor):  # whoever holds the gradient sees it, too
                        t.grad.handle = t.grad.detach().to(want).handle
                    elif t.grad is not None:
                        t.grad = t.grad.to(want)
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

    xpu = ipu = mtia = cuda

    def type(self, dst_type: Any) -> Module:
        return self.to(dtype=dtype_of(dst_type))

    def to_empty(self, *, device: Any = None, recurse: bool = True) -> Module:
        """Without effect: the dispatcher places tensors, and values stay."""
        return self

    def share_memory(self) -> Module:
        """Without effect: values on the workers need no shared memory."""
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Capture and replay calls of this module from now on."""
        self.forward = captured(self.forward)  # type: ignore[method-assign]

    # State

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers, by PyTorch's names and in its order."""
        return collect(self, OrderedDict() if destination is None else destination, prefix, keep_vars)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Load values by name: tensors of GT, PyTorch or NumPy."""
        return load(self, state_dict, strict, assign)

    @no_state
    def get_extra_state(self) -> Any:
        """To override: the state of this module in `state_dict()` besides tensors."""
        raise RuntimeError("override get_extra_state() in a module that has such state")

    @no_state
    def set_extra_state(self, state: Any) -> None:
        raise RuntimeError("override set_extra_state() in a module that has such state")

    def _compiled_as(self, call: Any) -> Module:
        """The result of `gt.compile` of this module."""
        return CompiledModule(self, call)

    def extra_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        inner = [f"({n}): {m!r}".replace("\n", "\n  ") for n, m in self.named_children()]
        name = type(self).__name__
        return f"{name}({self.extra_repr()})" if not inner else name + "(\n  " + "\n  ".join(inner) + "\n)"


class CompiledModule(Module):
    """A module whose calls are captured and replayed (`gt.compile(model)`). Parameters, state and modes are those of the
    original module, which has PyTorch's name for it: `_orig_mod`."""

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
