"""Attributes of tensors: shape, dtype, strides, whether gradients are required; and PyTorch's attributes of devices and
storage, which have one value here."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from gt.client.autograd import Port, SparseGradient, Tensor
from gt.client.functions.registry import FUNCTIONS, axis_spelling, both, method
from gt.client.strides import is_contiguous, offset, strides
from gt.client.views import RAW_GRAD, detached, is_view, root_of, storage_of
from gt.device import Device
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.spec import Spec


@method
def size(self: Tensor, axis: int | None = None, *, dim: int | None = None) -> Any:
    axis = axis_spelling(axis, dim)
    return self.handle.spec.size if axis is None else self.handle.spec.shape[axis_of(axis, self.handle.spec.ndim)]


_T: Any = Tensor
_T.shape = property(attrgetter("handle.spec.size"))  # in C
_T.dtype = property(attrgetter("handle.spec.dtype"))
_T.ndim = property(attrgetter("handle.spec.ndim"))
_T.is_leaf = property(lambda t: t.node is None)
_T.grad_fn = property(lambda t: t.node.node if isinstance(t.node, Port) else t.node)


def _set_grad(self: Tensor, value: Any) -> None:
    if value is not None:
        if not isinstance(value, (Tensor, SparseGradient)):
            raise ArgumentTypeError(f"expected a tensor or None as .grad, got {type(value).__name__}")
        own = self.handle.spec
        given = value.handle.spec if isinstance(value, Tensor) else Spec(value.shape, value.dtype)
        if value is self:
            raise ArgumentError("a tensor cannot be its own .grad: give it a copy, x.grad = x.detach().clone()")
        if given is not own:
            expected = f"expected .grad of the tensor's shape and dtype, {list(own.shape)} and {own.dtype.name}"
            raise ArgumentError(f"{expected}, got {list(given.shape)} and {given.dtype.name}")
    RAW_GRAD.__set__(self, value)


_T.grad = property(RAW_GRAD.__get__, _set_grad)
_T.nbytes = property(lambda t: t.handle.spec.nbytes)
_T.itemsize = property(lambda t: t.handle.spec.dtype.size)


@method
def dim(self: Tensor) -> int:
    return self.handle.spec.ndim


@both
def numel(input: Tensor) -> int:
    return input.handle.spec.numel


@method
def is_floating_point(self: Tensor) -> bool:
    return self.handle.spec.dtype.rank == 2


@method
def __len__(self: Tensor) -> int:
    if not self.handle.spec.shape:
        raise ArgumentTypeError("a 0-d tensor has no length")
    return self.handle.spec.shape[0]


HOME = Device("gt")


def _same(name: str, doc: str) -> None:
    def answer(input: Tensor, *_: Any, **__: Any) -> Tensor:
        return input

    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = doc
    method(answer)


for _name in ("cpu", "cuda", "pin_memory"):
    _same(_name, "This tensor: the dispatcher chooses its device.")
for _name in ("positive", "to_dense"):
    _same(_name, "This tensor: its numbers are real.")
for _name, _dtype in (("byte", "uint8"), ("char", "int8"), ("short", "int16")):
    setattr(_T, _name, lambda self, memory_format=None, _dtype=_dtype: self.to(_dtype))
_T.device = property(lambda self: HOME)  # the dispatcher chooses worker and device
for _name in ("cpu", "cuda", "ipu", "maia", "meta", "mkldnn", "mps", "mtia", "nested", "quantized", "sparse", "sparse_csr",
              "vulkan", "xla", "xpu"):  # fmt: skip
    setattr(_T, f"is_{_name}", property(lambda self: False))
for _name in ("conj", "neg", "inference", "pinned", "shared", "distributed"):
    setattr(_T, f"is_{_name}", lambda self: False)
_T.get_device = lambda self: -1
_T.layout = property(lambda self: "strided")  # gt.strided
_T.stride = lambda self, dim=None: strides(self) if dim is None else strides(self)[dim]
_T._base = property(lambda self: root_of(self) if is_view(self) else None)
_T._is_view = is_view
_T._version = property(lambda self: storage_of(self).made or 0)
_T.storage_offset = offset
_T.element_size = lambda self: self.dtype.size
_T.nelement = lambda self: self.handle.spec.numel
_T.ndimension = lambda self: self.ndim
_T.is_contiguous = lambda self, **_: is_contiguous(self)
_T.is_signed = lambda self: self.dtype.is_signed
_T.is_nonzero = lambda self: bool(self)
_T.is_same_size = lambda self, other: self.shape == other.shape
_T.view_as = lambda self, other: self.view(other.shape)
_T.reshape_as = lambda self, other: self.reshape(other.shape)


@method
def detach(input: Tensor) -> Tensor:
    """The same value without gradient tracking. Both tensors share memory."""
    return detached(input)


@method
def detach_(input: Tensor) -> Tensor:
    """Stop tracking gradients of this variable."""
    if is_view(input) and input.requires_grad:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    input.node, input.requires_grad = None, False
    return input


@method
def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    self.requires_grad = requires_grad
    return self


for _name in ("detach", "detach_", "positive"):
    FUNCTIONS[_name] = getattr(Tensor, _name)
