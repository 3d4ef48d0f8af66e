"""Python's operators on tensors, and their in-place forms. Values on the workers never change: an in-place form computes a new
value and lets the variable point at it."""

from __future__ import annotations

from typing import Any

from gt.client.apply import NUMBERS, apply, as_operand, binary, binary_of, unary, unary_of
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import as_tensor, full, full_like
from gt.client.functions.registry import both, method
from gt.client.native import last_id
from gt.client.views import detached, raw_handle
from gt.client.writes import assign, give_data
from gt.device import DEVICES, Device
from gt.errors import ArgumentTypeError
from gt.ops.rules import broadcast
from gt.ops.table import TABLE, Row
from gt.spec import dtype_of

_T: Any = Tensor


def _operator(name: str, row_name: str) -> None:
    row = TABLE[row_name]

    call = binary if row.grad is not None else _untaped
    forward = binary_of(row) if row.grad is not None else lambda self, other: _untaped(row, self, other)

    def reflected(self: Tensor, other: Any) -> Tensor:
        return call(row, _like(other, _tensor(self)), self)

    def in_place(self: Tensor, other: Any) -> Tensor:
        since = last_id(self.handle.session)
        return assign(self, call(row, self, other), since=since)

    for prefix, f in (("", forward), ("r", reflected), ("i", in_place)):
        setattr(_T, f"__{prefix}{name}__", f)
    setattr(_T, f"{row_name}_", in_place)


def _tensor(self: Any) -> Tensor:
    """The tensor of a reflected operator; raises if it was called by the class with another object."""
    if not isinstance(self, Tensor):
        raise TypeError(f"a reflected operator of Tensor: expected a tensor, got {type(self).__name__}")
    return self


def _untaped(row: Row, a: Tensor, b: Any) -> Tensor:
    """A binary op without gradient."""
    return apply(row, (a, b if isinstance(b, Tensor) else as_operand(b)))


def _like(number: Any, tensor: Tensor) -> Tensor:
    """A number on the left of an operator, as a 0-d tensor that promotes as the number would."""
    if isinstance(number, Tensor):
        return number
    if not isinstance(number, NUMBERS):
        other = as_operand(number, tensor)
        if isinstance(other, Tensor):
            return other
        number = other
    own = DEFAULT.of(number)
    return full((), number, dtype=tensor.dtype if own.rank <= tensor.dtype.rank else own)


_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "matmul",
    "floordiv": "floor_divide", "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
}  # fmt: skip
for _name, _row in _OPERATORS.items():
    _operator(_name, _row)
for _name in ("lt", "le", "gt", "ge"):
    setattr(_T, f"__{_name}__", lambda self, other, _row=TABLE[_name]: binary(_row, self, other))
_T.__eq__ = lambda self, other: False if other is None else binary(TABLE["eq"], self, other)
_T.__ne__ = lambda self, other: True if other is None else binary(TABLE["ne"], self, other)
_T.__hash__ = object.__hash__
_T.__array_priority__ = 1000  # NumPy's numbers and arrays leave operators to a tensor on their right
_T.__neg__ = lambda self: unary(TABLE["neg"], self)
_T.__abs__ = lambda self: unary(TABLE["abs"], self)
_T.__pos__ = lambda self: self
_T.__invert__ = lambda self: apply(TABLE["bitwise_not"], (self,))

_sum, _product, _negative = binary_of(TABLE["add"]), binary_of(TABLE["mul"]), unary_of(TABLE["neg"])
# A number on the left of a commuting operator needs no tensor of its own.
_T.__radd__ = lambda self, other: _sum(_tensor(self), other)
_T.__rmul__ = lambda self, other: _product(_tensor(self), other)
_T.__rdiv__ = _T.__rtruediv__ = lambda self, other: self.reciprocal() * other  # as PyTorch divides by a tensor


def _subtracted_from(self: Tensor, other: Any) -> Tensor:
    """`other - self`: the negative and a sum. Of integers and a float not so: their dtype may not have the negative."""
    if type(other) is float and raw_handle(self).spec.dtype.rank > 1:
        return _sum(_negative(self), other)
    if isinstance(other, bool):
        raise ArgumentTypeError("cannot subtract booleans: use ^ or logical_xor")
    if isinstance(other, int) or _tensor(self).handle.spec.dtype.rank > 1:
        return _sum(_negative(self), other)
    return binary(TABLE["sub"], _like(other, self), self)


_T.__rsub__ = _subtracted_from


@method
def pick(condition: Tensor, a: Any, b: Any) -> Tensor:
    """`a` where this condition is true, else `b`."""
    tensor = a if isinstance(a, Tensor) else b if isinstance(b, Tensor) else None
    return apply(TABLE["where"], (condition, *(o if isinstance(o, Tensor) else as_operand(o, tensor) for o in (a, b))))


def _give(self: Tensor, value: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(f"x.data: expected a tensor, got {type(value).__name__}")
    give_data(self, value)


_T.data = property(lambda self: detached(self, counted=False), _give)


def _filled(input: Tensor, value: Tensor) -> Tensor:
    """Write one value to all elements. On the tape the old value has a gradient of 0, as in PyTorch, and not none."""
    if input.node is not None:
        value = full(input.shape, False).pick(input, value)
    return assign(input, value, spread=True)


@both
def zero_(input: Tensor) -> Tensor:
    return _filled(input, full_like(Tensor(input.handle), 0))


@both
def fill_(input: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        if value.ndim:
            raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions.")
        return _filled(input, value.to(input.dtype).expand(input.shape).clone())
    return _filled(input, full_like(Tensor(input.handle), value))


@method
def copy_(self: Tensor, other: Any, non_blocking: bool = False) -> Tensor:
    other = other if isinstance(other, Tensor) else as_tensor(other)
    if broadcast(self.shape, other.shape) != self.shape:
        raise RuntimeError(f"output with shape {list(self.shape)} doesn't match the broadcast shape {list(other.shape)}")
    value = other.to(self.dtype).expand(self.shape)
    return assign(self, value.clone() if value is other or value.base is not None else value)


def _cast_method(name: str, dtype: Any) -> None:
    setattr(_T, name, lambda self, memory_format=None: self.to(dtype))


for _name in ("float", "double", "half", "long", "int", "bool"):
    _cast_method(_name, dtype_of(_name))
_cast_method("bfloat16", dtype_of("bfloat16"))


@method
def to(
    self: Tensor, *args: Any, dtype: Any = None, device: Any = None, copy: bool = False, non_blocking: bool = False,
    memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """This tensor in another dtype. The dispatcher chooses devices, so naming one has no effect."""
    for a in args:
        if isinstance(a, Tensor):
            dtype = a.dtype
        elif not isinstance(a, (bool, Device)) and not (isinstance(a, str) and a.split(":")[0] in DEVICES) and a is not None:
            dtype = a
    want = self.handle.spec.dtype if dtype is None else dtype_of(dtype)
    if want is self.handle.spec.dtype:
        flags = [a for a in args if isinstance(a, bool)]  # non_blocking, copy
        return self.clone() if copy or flags[1:] == [True] else self
    return apply(TABLE["cast"], (self,), (want.code,))


@method
def type_as(self: Tensor, other: Tensor) -> Tensor:
    """This tensor in the dtype of another."""
    return to(self, other.dtype)


_T.astype = to
