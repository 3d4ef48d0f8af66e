"""Activations: one instruction each if the table has a row, else a few."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply, unary
from gt.client.autograd import Tensor
from gt.client.functions.elementwise import where
from gt.client.functions.random import rand
from gt.client.native import last_id
from gt.client.saved import note_saved, saves
from gt.client.writes import assign
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of, broadcast
from gt.ops.table import TABLE
from gt.spec import promote_types


def _written(input: Tensor, y: Tensor, inplace: bool, since: int | None = None) -> Tensor:
    """The result, or, with `inplace`, the variable with the result as its value. `since`: the last result before it was
    computed, if several ops computed it."""
    return assign(input, y, since=since) if inplace else y


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return _written(input, unary(TABLE["relu"], input), inplace)


def sigmoid(input: Tensor) -> Tensor:
    return unary(TABLE["sigmoid"], input)


def tanh(input: Tensor) -> Tensor:
    return unary(TABLE["tanh"], input)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    return _written(input, unary(TABLE["silu"], input), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """`x * Φ(x)`, or its approximation by a tanh."""
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"no approximation {approximate!r} of gelu: known are none, tanh")
    return apply(TABLE["gelu"], (input,), (approximate == "tanh",))


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return _written(input, apply(TABLE["leaky_relu"], (input, float(negative_slope))), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return _written(input, apply(TABLE["elu"], (input, float(alpha))), inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    since = last_id(input.handle.session)
    y = elu(input, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946
    return _written(input, y, inplace, since)


@saves("input")
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    since = last_id(input.handle.session)
    return _written(input, elu(input / alpha) * alpha, inplace, since)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    return apply(TABLE["softplus"], (input, float(beta), float(threshold)))


@saves("input")
def logsigmoid(input: Tensor) -> Tensor:
    """`log(sigmoid(x))`, which stays finite where the sigmoid is 0."""
    return -softplus(-input, 1.0, 40.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: expected min_val up to max_val, got {min_val} and {max_val}")
    return _written(input, apply(TABLE["hardtanh"], (input, float(min_val), float(max_val))), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return _written(input, input.clamp(0, 6) if input.dtype.rank == 1 else hardtanh(input, 0.0, 6.0), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return _written(input, note_saved(relu6(input + 3.0) / 6.0, input), inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    return _written(input, input * relu6(input + 3.0) / 6.0, inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    since = last_id(input.handle.session)
    return _written(input, input * tanh(softplus(input)), inplace, since)


def softsign(input: Tensor) -> Tensor:
    return input / (input.abs() + 1.0)


def tanhshrink(input: Tensor) -> Tensor:
    return input - tanh(input)


@saves("input")
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Elements moved towards zero by `lambd`, and zero within it."""
    if lambd < 0:
        raise ArgumentError(f"lambd: expected 0 or more, got {lambd}")
    return where(input > lambd, input - lambd, where(input < -lambd, input + lambd, input * 0.0))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """`value` for all that is not above the threshold."""
    number = (float if input.dtype.rank >= 2 else int)(value)
    return _written(input, note_saved(where(input <= threshold, number, input), input), inplace)


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """A slope for negative elements: random for each element when training, else the mean slope."""
    if lower > upper:
        raise ArgumentError(f"rrelu: expected lower up to upper, got {lower} and {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    slope = rand(input.shape, dtype=input.dtype) * (upper - lower) + lower
    return _written(input, note_saved(where(input >= 0, input, input * slope), input), inplace)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A differentiable random choice; with `hard` as 0 and 1."""
    clocks = -(1.0 - rand(logits.shape, dtype=logits.dtype)).log()
    soft = softmax((logits - clocks.log()) / tau, dim)
    if not hard:
        return soft
    chosen = soft.argmax(dim, keepdim=True)
    sharp = soft.detach() * 0
    return sharp.scatter(axis_of(dim, soft.ndim), chosen, 1.0) - soft.detach() + soft


def relu_(input: Tensor) -> Tensor:
    return relu(input, True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return leaky_relu(input, negative_slope, True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    return elu(input, alpha, True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return hardtanh(input, min_val, max_val, True)


def selu_(input: Tensor) -> Tensor:
    return selu(input, True)


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    return celu(input, alpha, True)


_thresholded = threshold  # `threshold` is a parameter's name, too


def threshold_(input: Tensor, threshold: float, value: float) -> Tensor:
    return _thresholded(input, threshold, value, True)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half along an axis, times the sigmoid of the second."""
    axis = axis_of(dim, input.ndim)
    size = input.shape[axis]
    if size % 2:
        raise ArgumentError(f"glu: expected an axis of even size, got {size} of {input.shape}")
    return input.narrow(axis, 0, size // 2) * sigmoid(input.narrow(axis, size // 2, size // 2))


def _along(name: str, input: Tensor, dim: int | None, dtype: Any) -> Tensor:
    if dim is None:
        raise ArgumentTypeError(f"{name} needs an axis: {name}(x, dim=-1)")
    x = input if dtype is None else input.to(dtype)
    return apply(TABLE[name], (x,), (axis_of(dim, max(x.ndim, 1)),))


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return _along("softmax", input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return _along("log_softmax", input, dim, dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return softmax(-input, dim, dtype=dtype)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Each vector along an axis divided by its norm."""
    axes = (axis_of(dim, input.ndim),) if input.ndim else ()
    size = apply(TABLE["norm"], (input,), (float(p), axes, True))
    return input / size.maximum(eps)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis."""
    shape = broadcast(x1.shape, x2.shape)
    common = promote_types(x1.dtype, x2.dtype)
    x1, x2 = ((x.to(common) if x.dtype.rank < 2 else x).expand(shape) for x in (x1, x2))
    if common.rank < 2:
        raise ArgumentTypeError(f"cosine_similarity: expected floating-point tensors, got {x1.dtype.name} and {x2.dtype.name}")
    if not shape:
        return (x1 / x1.abs().maximum(eps)) * (x2 / x2.abs().maximum(eps))
    sizes = [apply(TABLE["norm"], (x,), (2.0, (axis_of(dim, x.ndim),), True)).maximum(eps) for x in (x1, x2)]
    return (x1 / sizes[0] * (x2 / sizes[1])).sum(axis=dim)
