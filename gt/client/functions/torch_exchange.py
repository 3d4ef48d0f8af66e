"""Conversion from and to PyTorch, copies and pickles."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from gt.client.autograd import Tensor
from gt.client.functions.create import tensor
from gt.client.functions.registry import function, method
from gt.client.views import cut
from gt.errors import ArgumentTypeError


@function
def from_torch(data: Any, requires_grad: bool | None = None) -> Any:
    """A copy of a PyTorch tensor; of a dict or list of them, such as a state dict, a copy of each."""
    if isinstance(data, dict):
        return {k: from_torch(v, requires_grad) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return type(data)(from_torch(v, requires_grad) for v in data)
    if type(data).__module__.split(".")[0] != "torch":
        raise ArgumentTypeError(f"from_torch: expected a PyTorch tensor, got {type(data).__name__}: use gt.tensor")
    return tensor(data, requires_grad=bool(data.requires_grad if requires_grad is None else requires_grad))


@method
def torch(self: Tensor) -> Any:
    """The value as a PyTorch tensor of the same dtype, in this process's memory."""
    try:
        import torch as pytorch
    except ImportError:
        raise ImportError("x.torch() gives a tensor of PyTorch, which is not installed here: pip install torch") from None
    found = pytorch.from_numpy(self.numpy())
    return found.to(pytorch.bfloat16) if self.handle.spec.dtype.name == "bfloat16" else found


def _as_class(cls: type, value: Tensor, requires_grad: bool) -> Tensor:
    """A tensor as one of a class of tensors that is made of data, such as a parameter."""
    made = value if cls is Tensor else cls(value)
    made.requires_grad = requires_grad
    return made


@method
def __copy__(self: Tensor) -> Tensor:
    """Another variable of the same elements: `copy.copy` of a tensor shares its memory, as in PyTorch."""
    return _as_class(type(self), self.detach(), self.requires_grad)


def _unpickled(cls: type, array: Any, dtype: str, requires_grad: bool) -> Tensor:
    return _as_class(cls, tensor(array, dtype=dtype), requires_grad)


@method
def __reduce_ex__(self: Tensor, protocol: Any) -> tuple:
    """For `pickle`, which users may call: the values are read, and a leaf is made of them."""
    return (
        _unpickled,
        (type(self), self.detach().numpy(), self.dtype.name, self.requires_grad),
        getattr(self, "__dict__", None) or None,
    )


@method
def __deepcopy__(self: Tensor, memo: dict) -> Tensor:
    """A variable of its own. Values never change, so both share one value."""
    if self.node is not None:
        raise RuntimeError("only leaves can be copied deeply: detach() this tensor first")
    _ = self.handle  # brings a view up to date
    made = cut(Struct.__copy__(self))  # type: ignore[attr-defined]
    made.grad = made.hooks = None
    memo[id(self)] = made
    if self.grad is not None:
        made.grad = Tensor(self.grad.handle) if isinstance(self.grad, Tensor) else self.grad.clone()
    return made
