"""Parameters and buffers, the tensors of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.autograd import Tensor
from gt.client.functions.create import tensor, zeros
from gt.client.printing import show
from gt.client.views import share
from gt.errors import ArgumentTypeError

__all__ = ["Buffer", "Parameter"]


class _FromData(type(Tensor)):  # type: ignore[misc]
    """Makes a parameter from data or another tensor; the constructor of tensors takes a handle."""

    def __call__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        given = data if isinstance(data, Tensor) else zeros(0) if data is None else tensor(data)
        if requires_grad and given.handle.spec.dtype.rank < 2:
            raise ArgumentTypeError(
                f"only floating-point and complex tensors have gradients, not {given.handle.spec.dtype.name}: write "
                "requires_grad=False for one without gradients"
            )
        made = super().__call__(given.handle, requires_grad)
        if isinstance(data, Tensor):
            share(made, data)
        return made


class Parameter(Tensor, metaclass=_FromData, dict=True):
    """A parameter of a module. It accepts additional attributes."""

    if TYPE_CHECKING:

        def __init__(self, data: Any = None, requires_grad: bool = True) -> None: ...

    def __repr__(self) -> str:
        return "Parameter containing:\n" + show(self)


class _BufferFromData(type(Tensor)):  # type: ignore[misc]
    def __call__(cls, data: Any = None, *, persistent: bool = True) -> Any:
        given = data if isinstance(data, Tensor) else zeros(0) if data is None else tensor(data)
        made = super().__call__(given.handle, given.requires_grad)
        made.persistent = persistent
        if isinstance(data, Tensor):
            share(made, data)
        return made


class Buffer(Tensor, metaclass=_BufferFromData):
    """A tensor of a module's state that is not a parameter; one that is not `persistent` is not in `state_dict()`.

    >>> norm = gt.nn.Module()
    >>> norm.mean = gt.nn.Buffer(gt.zeros(2))
    >>> dict(norm.state_dict())
    {'mean': tensor([0., 0.])}
    """

    persistent: bool = True

    if TYPE_CHECKING:

        def __init__(self, data: Any = None, *, persistent: bool = True) -> None: ...
