"""Reads of values: the only functions in which a client waits."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Node, Tensor
from gt.client.backward import backward, gradient_scope
from gt.client.functions.create import as_tensor
from gt.client.functions.registry import method
from gt.client.here import here
from gt.client.host_copies import HostCopies
from gt.client.printing import show
from gt.client.views import raw_handle, spec_of
from gt.errors import ArgumentError, ArgumentTypeError, GTError
from gt.ops.table import TABLE, spec_out


@method
def numpy(self: Tensor) -> np.ndarray:
    """The value as a NumPy array, a copy that shares no memory with the tensor. bfloat16, which NumPy lacks, is converted to
    float32."""
    return self.handle.numpy()


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """The placement of a tensor as text, and the offset and shape of the piece on each worker."""

    layout: str
    pieces: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]

    def __repr__(self) -> str:
        return self.layout

    def _repr_html_(self) -> str:
        """A table row for each worker, in notebooks."""
        rows = "".join(f"<tr><td>{w}</td><td>{list(start)}</td><td>{list(shape)}</td></tr>" for w, start, shape in self.pieces)
        heads = "<tr><th>worker</th><th>from</th><th>shape</th></tr>"
        return f"<b>{escape(self.layout)}</b><table>{heads}{rows}</table>"

    @property
    def workers(self) -> list[int]:
        return [w for w, _, _ in self.pieces]


def placement(self: Tensor) -> TensorPlacement:
    """The placement of this tensor: `Shard(0) on [0, 1]`."""
    handle = self.handle
    found = handle.session.ask("placement", [handle.id, *spec_out(handle.spec)], timeout=60)
    if found is None:
        raise GTError(
            f"a tensor of shape {self.shape} has no placement: a worker that held it was lost, or the op that makes it failed"
        )
    return TensorPlacement(found["layout"], tuple((w, tuple(start), tuple(shape)) for w, start, shape in found["pieces"]))


Tensor.placement = property(placement)  # type: ignore[attr-defined]


def _value(t: Tensor) -> np.ndarray:
    """The value as an array that the caller must not keep or write: it may be the copy kept for reads of single elements."""
    if t.base is not None:
        session = raw_handle(t).session
        if session.copies is None:
            session.copies = HostCopies()
        found = session.copies.read(t)
        if found is not None:
            return found
    return t.handle.numpy()


@method
def item(self: Tensor) -> Any:
    """The value of a tensor of one element, as a Python number."""
    if spec_of(self).numel != 1:
        raise ArgumentError(f"item(): expected one element, got {spec_of(self).shape}: use tolist() or numpy()")
    if self.base is not None:
        return _value(self).item()
    handle = self.handle
    return handle.session.read_number(handle.id, handle.spec)


@method
def tolist(self: Tensor) -> Any:
    return _value(self).tolist()


@method
def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return self.handle.__array__(dtype)


@method
def __array_wrap__(self: Tensor, array: np.ndarray, context: Any = None, return_scalar: bool = False) -> Tensor:
    """The result of NumPy's functions of tensors is a tensor, as in PyTorch; an error where its gradient would be lost."""
    operands = context[1] if context else (self,)
    if any(isinstance(x, Tensor) and x.requires_grad for x in operands):
        raise RuntimeError("a function of NumPy has no gradient: use GT's, or detach() the tensor first")
    return as_tensor(array.astype(np.uint8) if array.dtype == bool else array)


@method
def __bool__(self: Tensor) -> bool:
    if spec_of(self).numel != 1:
        raise ArgumentError(f"whether a tensor of {self.handle.spec.shape} is true has no single answer: use any() or all()")
    return bool(item(self))


@method
def __contains__(self: Tensor, element: Any) -> bool:
    if not isinstance(element, (Tensor, int, float, complex, np.generic)):
        raise ArgumentTypeError(f"whether a {type(element).__name__} is in a tensor: expected a number or a tensor")
    return bool(item((self == element).any()))


@method
def __int__(self: Tensor) -> int:
    return int(item(self))


@method
def __float__(self: Tensor) -> float:
    return float(item(self))


@method
def __complex__(self: Tensor) -> complex:
    return complex(item(self))


@method
def __index__(self: Tensor) -> int:
    if self.handle.spec.dtype.rank != 1 or self.handle.spec.numel != 1:
        raise ArgumentTypeError("only a whole-number tensor of one element can be an index")
    return int(item(self))


@method
def __dlpack__(self: Tensor, **settings: Any) -> Any:
    return self.handle.numpy().__dlpack__(**settings)


@method
def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    return (1, 0)  # a read value lies in the host's memory


@method
def __format__(self: Tensor, form: str) -> str:
    if type(self) is Tensor and not self.handle.spec.shape:
        return format(item(self), form)
    return object.__format__(self, form)


@method
def __repr__(self: Tensor) -> str:
    return show(self)


@method
def _repr_html_(self: Tensor) -> str:
    """For notebooks: dtype, shape and bytes, and the values as `print` shows them."""
    spec = self.handle.spec
    about = f"{spec.dtype.name} {list(spec.shape)}, {spec.nbytes:,} bytes" + (", requires grad" if self.requires_grad else "")
    return f"<div><small>gt.Tensor {escape(about)}</small><pre>{escape(show(self))}</pre></div>"


def _one(t: Tensor) -> Tensor:
    return apply(TABLE["full_like"], (Tensor(t.handle), 1.0), (t.handle.spec.dtype.code,))


_T: Any = Tensor
_T.backward = None


@method
def backward_(self: Tensor, gradient: Tensor | None = None, retain_graph: bool = False, create_graph: bool = False) -> None:
    """Accumulate gradients of this tensor in `.grad` of the leaves it was computed from."""
    if not self.requires_grad:
        raise RuntimeError("backward() of a tensor that no gradient leads to: expected requires_grad=True somewhere before it")
    if gradient is None:
        if self.handle.spec.numel != 1:
            raise RuntimeError(f"backward() of a tensor of {self.handle.spec.shape}: expected a gradient of that shape")
        if self.handle.spec.dtype.is_complex:
            raise RuntimeError("backward() of a complex number: expected a gradient, as only real numbers have an implicit one")
        node = self.node
        if isinstance(node, Node) and not node.scope.signal and not node.scope.backward and not here().signal:
            gradient = _one(self)
        else:
            with gradient_scope(self):  # computed where the gradients are, not sent there
                gradient = _one(self)
    elif gradient.handle.spec.shape != self.handle.spec.shape:
        raise ArgumentError(
            f"the gradient of a tensor of {self.handle.spec.shape}: expected that shape, got {gradient.handle.spec.shape}"
        )
    backward([self], [gradient], retain_graph or create_graph, create_graph)


_T.backward = backward_
del _T.backward_
