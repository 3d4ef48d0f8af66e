"""The functions that layers are made of: activations with settings, normalisation, convolution, pooling, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import axis_spelling, both, function
from gt.client.functions.operators import assign
from gt.client.session import here
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import bool_

FUNCTIONAL: dict[str, Callable] = {}


def layer(f: Callable) -> Callable:
    """A function of the `gt.nn.functional` namespace."""
    FUNCTIONAL[f.__name__] = f
    return f


def _axis(x: Tensor, axis: Any, dim: Any) -> int:
    axis = axis_spelling(axis, dim)
    if axis is None:
        raise TypeError("name the axis: softmax(x, dim=-1)")
    return axis_of(axis, x.ndim)


@layer
@both
def softmax(x: Tensor, axis: Any = None, dtype: Any = None, *, dim: Any = None) -> Tensor:
    """Positive shares of 1 along an axis, e to the power of each element."""
    x = x if dtype is None else x.to(dtype)
    return apply(TABLE["softmax"], (x,), (_axis(x, axis, dim),))


@layer
@both
def log_softmax(x: Tensor, axis: Any = None, dtype: Any = None, *, dim: Any = None) -> Tensor:
    """The logarithm of `softmax`."""
    x = x if dtype is None else x.to(dtype)
    return apply(TABLE["log_softmax"], (x,), (_axis(x, axis, dim),))


@layer
@function
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x times the chance of a standard normal number below x, exact or approximated by "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"no approximation {approximate!r}: known are none, tanh")
    return apply(TABLE["gelu"], (input,), (approximate == "tanh",))


@layer
@function
def silu(input: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return apply(TABLE["silu"], (input,))


@layer
@function
def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return apply(TABLE["leaky_relu"], (input, float(negative_slope)))


@layer
@function
def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    return apply(TABLE["elu"], (input, float(alpha)))


@layer
@function
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(x)), smooth where relu has a corner."""
    return apply(TABLE["softplus"], (input, float(beta), float(threshold)))


@layer
@function
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    return apply(TABLE["hardtanh"], (input, float(min_val), float(max_val)))


@layer
@function
def relu6(input: Tensor) -> Tensor:
    return hardtanh(input, 0.0, 6.0)


@layer
@function
def logsigmoid(input: Tensor) -> Tensor:
    return -softplus(-input)


@layer
@function
def softsign(input: Tensor) -> Tensor:
    return input / (input.abs() + 1)


@layer
@function
def mish(input: Tensor) -> Tensor:
    return input * softplus(input).tanh()


@layer
@function
def selu(input: Tensor) -> Tensor:
    return elu(input, 1.6732632423543772) * 1.0507009873554805


@layer
@function
def hardsigmoid(input: Tensor) -> Tensor:
    return hardtanh(input + 3, 0.0, 6.0) / 6


@layer
@function
def hardswish(input: Tensor) -> Tensor:
    return input * hardsigmoid(input)


@layer
@function
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """One half of an axis by the sigmoid of the other."""
    a, b = input.chunk(2, dim)
    return a * b.sigmoid()


def _inner(name: str, x: Tensor, normalized_shape: Any) -> int:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or x.shape[x.ndim - len(shape) :] != shape:
        raise ValueError(f"{name} over {shape} wants a tensor that ends so, not {x.shape}")
    return len(shape)


@layer
@function
def layer_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:  # fmt: skip
    """Mean 0 and variance 1 over the last axes, then scaled and shifted."""
    n = _inner("layer_norm", input, normalized_shape)
    parts = () if weight is None else (weight,) if bias is None else (weight, bias)
    y = apply(TABLE["layer_norm"], (input, float(eps), *parts), (n,))[0]
    return y + bias if weight is None and bias is not None else y


@layer
@function
def rms_norm(input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Mean square 1 over the last axes, then scaled. Without eps, the dtype's own."""
    from gt.client.functions.info import finfo

    n = _inner("rms_norm", input, normalized_shape)
    eps = finfo(input.dtype).eps if eps is None else float(eps)
    return apply(TABLE["rms_norm"], (input, eps) if weight is None else (input, eps, weight), (n,))[0]


def _pair(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
    if weight is None and bias is not None:
        weight = bias.new_ones(bias.shape)
    return () if weight is None else (weight,) if bias is None else (weight, bias)


@layer
@function
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None,
               eps: float = 1e-5) -> Tensor:  # fmt: skip
    """Mean 0 and variance 1 within groups of channels."""
    return apply(TABLE["group_norm"], (input, float(eps), *_pair(weight, bias)), (int(num_groups),))[0]


@layer
@function
def instance_norm(input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    return group_norm(input, input.shape[1], weight, bias, eps)


@layer
@function
def batch_norm(input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
               bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
               eps: float = 1e-5) -> Tensor:  # fmt: skip
    """Mean 0 and variance 1 for each channel: of this batch while training, which then moves the running ones; else of
    those."""
    parts = _pair(weight, bias)
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm wants running statistics unless it is training")
        return apply(TABLE["batch_norm"], (input, running_mean, running_var, float(eps), *parts))
    y, mean, _, var = apply(TABLE["batch_norm_train"], (input, float(eps), *parts))
    for running, seen in ((running_mean, mean), (running_var, var)):
        if running is not None:
            assign(running, running.lerp(seen.detach().to(running.dtype), float(momentum)))
    return y


@layer
def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of a table at these places. The row of `padding_idx` gets no gradient."""
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return apply(TABLE["embedding"], (weight, input), (padding,))


@layer
@function
def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element zero with the chance `p`, the others larger by as much, while training."""
    if not 0 <= p <= 1:
        raise ValueError(f"a chance lies between 0 and 1: {p}")
    if not training or p == 0:
        return input
    session = here().session
    numbers = (float(p), session.seed, next(session.draws))
    y = apply(TABLE["dropout"], (input, *numbers), (input.shape, (0,) * input.ndim))
    return assign(input, y) if inplace else y


def _each(value: Any, n: int) -> tuple[int, ...]:
    """A setting for each of `n` axes, from one or from several."""
    found = (int(value),) * n if isinstance(value, int) else tuple(int(v) for v in value)
    return found * n if len(found) == 1 else found


def _conv(n: int) -> Callable:
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
             dilation: Any = 1, groups: int = 1) -> Tensor:  # fmt: skip
        if input.ndim == n + 1:
            return conv(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
        if input.ndim != n + 2 or weight.ndim != n + 2:
            raise ValueError(f"conv{n}d wants {n + 2} axes, not {input.shape} and a weight of {weight.shape}")
        stride, dilation = _each(stride, n), _each(dilation, n)
        if padding == "valid":
            padding = 0
        if padding == "same":
            total = [e * (k - 1) for e, k in zip(dilation, weight.shape[2:])]
            if any(s != 1 for s in stride):
                raise ValueError("padding 'same' is for a stride of 1")
            if any(t % 2 for t in total):  # one more behind than before
                from gt.client.functions.moving import pad

                input = pad(input, [w for t in reversed(total) for w in (0, t % 2)])
            padding = [t // 2 for t in total]
        operands = (input, weight) if bias is None else (input, weight, bias)
        return apply(TABLE["conv"], operands, (stride, _each(padding, n), dilation, int(groups)))

    conv.__name__ = conv.__qualname__ = f"conv{n}d"
    conv.__doc__ = f"Convolution over {n} axis: (batch, channels, ...) by (out, in / groups, ...)."
    return layer(function(conv))


conv1d, conv2d, conv3d = _conv(1), _conv(2), _conv(3)


def _conv_transpose(n: int) -> Callable:
    def conv(input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
             output_padding: Any = 0, groups: int = 1, dilation: Any = 1) -> Tensor:  # fmt: skip
        if input.ndim == n + 1:
            return conv(input.unsqueeze(0), weight, bias, stride, padding, output_padding, groups, dilation).squeeze(0)
        stride, padding, dilation, extra = (_each(v, n) for v in (stride, padding, dilation, output_padding))
        size = tuple((d - 1) * s - 2 * p + e * (k - 1) + x + 1
                     for d, s, p, e, k, x in zip(input.shape[2:], stride, padding, dilation, weight.shape[2:], extra))  # fmt: skip
        operands = (input, weight) if bias is None else (input, weight, bias)
        return apply(TABLE["conv_transpose"], operands, (size, stride, padding, dilation, int(groups)))

    conv.__name__ = conv.__qualname__ = f"conv_transpose{n}d"
    conv.__doc__ = f"The transpose of a convolution over {n} axis."
    return layer(function(conv))


conv_transpose1d, conv_transpose2d = _conv_transpose(1), _conv_transpose(2)


def _pools(n: int) -> None:
    def max_pool(input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                 ceil_mode: bool = False, return_indices: bool = False) -> Any:  # fmt: skip
        kernel = _each(kernel_size, n)
        statics = (kernel, _each(stride or kernel, n), _each(padding, n), _each(dilation, n), bool(ceil_mode))
        found = apply(TABLE["max_pool"], (input,), statics)
        return found if return_indices else found[0]

    def avg_pool(input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: int | None = None) -> Tensor:  # fmt: skip
        kernel = _each(kernel_size, n)
        flags = (bool(ceil_mode), bool(count_include_pad), int(divisor_override or 0))
        return apply(TABLE["avg_pool"], (input,), (kernel, _each(stride or kernel, n), _each(padding, n), *flags))

    def adaptive_avg_pool(input: Tensor, output_size: Any) -> Tensor:
        sizes = (output_size,) * n if isinstance(output_size, int) or output_size is None else tuple(output_size)
        sizes = tuple(d if s is None else int(s) for s, d in zip(sizes, input.shape[-n:]))
        return apply(TABLE["adaptive_avg_pool"], (input,), (sizes,))

    for f, what in ((max_pool, "The largest"), (avg_pool, "The mean"), (adaptive_avg_pool, "The mean, to a given size,")):
        f.__name__ = f.__qualname__ = f"{f.__name__}{n}d"
        f.__doc__ = f"{what} of each window over the last {n} axes."
        layer(function(f))


_pools(1)
_pools(2)


@layer
@function
def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                                 enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """`softmax(query @ key.T * scale + mask) @ value`. With `enable_gqa`, keys may have fewer heads than queries."""
    if not enable_gqa and query.ndim > 2 and query.shape[-3] != key.shape[-3]:
        raise ValueError(f"{query.shape[-3]} heads of queries and {key.shape[-3]} of keys: want enable_gqa=True")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    wants = attn_mask is not None and attn_mask.requires_grad
    if dropout_p or wants:
        return _composed_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    operands = (query, key, value, scale) if attn_mask is None else (query, key, value, scale, attn_mask)
    return apply(TABLE["attention"], operands, (bool(is_causal),))[0]


def _composed_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, p: float, causal: bool, scale: float) -> Tensor:
    """In the open, for what the fused op leaves out: dropout of the shares, and a mask that wants a gradient."""
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (t.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for t in (k, v))
    s = q @ k.mT * scale
    if causal:
        mask = s.new_ones(s.shape[-2:]).tril().to(bool_)
    if mask is not None:
        s = mask.pick(s, float("-inf")) if mask.dtype is bool_ else s + mask
    return dropout(softmax(s, -1), p) @ v


@layer
@function
def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """Vectors of length 1 along an axis."""
    return input / input.norm(p, dim, True).clamp(min=eps)


@layer
@function
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis."""
    lengths = x1.norm(2, dim).clamp(min=eps) * x2.norm(2, dim).clamp(min=eps)
    return (x1 * x2).sum(dim) / lengths
