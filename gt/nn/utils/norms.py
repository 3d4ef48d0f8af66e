"""`weight_norm` and `spectral_norm` by hooks, under their older names in state dicts: `weight_g` and `weight_v`, `weight_orig`,
`weight_u` and `weight_v`."""

from __future__ import annotations

from typing import Any

from gt.client.functions.random import randn
from gt.client.grad_mode import no_grad
from gt.nn.module import Module, Parameter
from gt.nn.utils.parametrizations import axis_of_outputs, norm_except, unit


class _ByHook:
    """A parameter that a hook computes before each forward. `name` is the parameter's."""

    def __init__(self, name: str) -> None:
        self.name, self.handle = name, None

    def value(self, module: Module) -> Any:
        raise NotImplementedError

    def __call__(self, module: Module, args: Any) -> None:
        module.__dict__[self.name] = self.value(module)

    def install(self, module: Module) -> Module:
        module.__dict__[self.name] = self.value(module)
        self.handle = module.register_forward_pre_hook(self)  # type: ignore[assignment]
        return module

    def remove(self, module: Module, *names: str) -> Module:
        value = self.value(module).detach()
        assert self.handle is not None
        self.handle.remove()
        for name in (self.name, *names):
            module.__dict__.pop(name, None)
            module.__dict__.get("_registered", {}).pop(name, None)
        setattr(module, self.name, Parameter(value))
        return module


class _WeightNorm(_ByHook):
    def __init__(self, name: str, dim: int | None) -> None:
        super().__init__(name)
        self.dim = dim

    def value(self, module: Module) -> Any:
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / norm_except(v, self.dim))


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """The weight as a length `name_g` and a direction `name_v`."""
    if _found(module, name, _WeightNorm) is not None:
        raise RuntimeError(f"{name} of {type(module).__name__} has a weight norm already")
    weight = module.__dict__.pop(name)
    with no_grad():
        setattr(module, f"{name}_g", Parameter(norm_except(weight.detach(), dim)))
        setattr(module, f"{name}_v", Parameter(weight.detach()))
    return _WeightNorm(name, dim).install(module)


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    found = _found(module, name, _WeightNorm)
    if found is None:
        raise ValueError(f"{name} of {type(module).__name__} has no weight norm")
    return found.remove(module, f"{name}_g", f"{name}_v")


class _SpectralNorm(_ByHook):
    def __init__(self, name: str, iterations: int, dim: int, eps: float) -> None:
        super().__init__(name)
        self.iterations, self.dim, self.eps = iterations, dim, eps

    def matrix(self, weight: Any) -> Any:
        order = (self.dim, *(i for i in range(weight.ndim) if i != self.dim))
        return weight.permute(order).reshape((weight.shape[self.dim], -1))

    def value(self, module: Module) -> Any:
        weight = getattr(module, f"{self.name}_orig")
        matrix = self.matrix(weight)
        if module.training:
            with no_grad():
                for _ in range(self.iterations):
                    v = unit(matrix.detach().t() @ getattr(module, f"{self.name}_u"), self.eps)
                    setattr(module, f"{self.name}_v", v)
                    setattr(module, f"{self.name}_u", unit(matrix.detach() @ v, self.eps))
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        return weight / (u * (matrix @ v)).sum()


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """The weight divided by its largest singular value; `name_orig` is the parameter."""
    if _found(module, name, _SpectralNorm) is not None:
        raise RuntimeError(f"{name} of {type(module).__name__} has a spectral norm already")
    hook = _SpectralNorm(name, n_power_iterations, axis_of_outputs(module, dim), eps)
    weight = module.__dict__.pop(name)
    setattr(module, f"{name}_orig", Parameter(weight.detach()))
    with no_grad():
        rows, columns = hook.matrix(weight.detach()).shape
        module.register_buffer(f"{name}_u", unit(randn(rows, dtype=weight.dtype), eps))
        module.register_buffer(f"{name}_v", unit(randn(columns, dtype=weight.dtype), eps))
    return hook.install(module)


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    found = _found(module, name, _SpectralNorm)
    if found is None:
        raise ValueError(f"{name} of {type(module).__name__} has no spectral norm")
    training, module.training = module.training, False
    found.remove(module, f"{name}_orig", f"{name}_u", f"{name}_v")
    module.training = training
    return module


def _found(module: Module, name: str, cls: type) -> Any:
    hooks = [hook.call for hook in module._hooks_of("before")]
    return next((h for h in hooks if isinstance(h, cls) and h.name == name), None)  # type: ignore[attr-defined]
