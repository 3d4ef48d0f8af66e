"""Convolutions and pooling over one or two axes (three for convolutions)."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.moving import pad
from gt.ops.table import TABLE


def spread(value: Any, n: int, name: str = "a size") -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    if isinstance(value, int):
        return (value,) * n
    out = tuple(int(v) for v in value)
    if len(out) == 1:
        return out * n
    if len(out) != n:
        raise ValueError(f"{name} is one number or {n}, not {out}")
    return out


def _batched(input: Tensor, n: int, name: str) -> tuple[Tensor, bool]:
    """(batch, channels, ...), and whether the batch was missing."""
    if input.ndim == n + 1:
        return input.unsqueeze(0), True
    if input.ndim != n + 2:
        raise ValueError(f"{name} wants (channels, ...) or (batch, channels, ...) with {n} axes more, not {input.shape}")
    return input, False


def _conv(n: int, input: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    x, single = _batched(input, n, f"conv{n}d")
    stride, dilation = spread(stride, n, "stride"), spread(dilation, n, "dilation")
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ValueError("padding='same' goes with a stride of 1")
        totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
        uneven = [t % 2 for t in totals]
        if any(uneven):  # the odd element goes behind, as PyTorch has it
            x = pad(x, [w for u in reversed(uneven) for w in (0, u)])
        padding = tuple(t // 2 for t in totals)
    elif padding == "valid":
        padding = 0
    statics = (stride, spread(padding, n, "padding"), dilation, groups)
    y = apply(TABLE["conv"], (x, weight) if bias is None else (x, weight, bias), statics)
    return y.squeeze(0) if single else y


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def _transpose(
    n: int, input: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> Tensor:
    x, single = _batched(input, n, f"conv_transpose{n}d")
    stride, padding, dilation = spread(stride, n, "stride"), spread(padding, n, "padding"), spread(dilation, n, "dilation")
    extra = spread(output_padding, n, "output_padding")
    for e, s, d in zip(extra, stride, dilation):
        if e >= max(s, d):
            raise ValueError(f"output_padding is less than stride or dilation: {extra} for {stride} and {dilation}")
    size = tuple(
        (d - 1) * s - 2 * p + e * (k - 1) + o + 1
        for d, s, p, e, k, o in zip(x.shape[2:], stride, padding, dilation, weight.shape[2:], extra)
    )
    y = apply(
        TABLE["conv_transpose"], (x, weight) if bias is None else (x, weight, bias), (size, stride, padding, dilation, groups)
    )
    return y.squeeze(0) if single else y


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    return _transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Tensor:  # fmt: skip
    return _transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def _ranked(input: Tensor, n: int, name: str) -> None:
    if input.ndim not in (n + 1, n + 2):
        raise ValueError(f"{name} wants (channels, ...) or (batch, channels, ...) with {n} axes more, not {input.shape}")


def _max_pool(n: int, input: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, places: bool) -> Any:
    _ranked(input, n, f"max_pool{n}d")
    size = spread(size, n, "kernel_size")
    by = size if stride is None or stride == () else spread(stride, n, "stride")
    statics = (size, by, spread(padding, n, "padding"), spread(dilation, n, "dilation"), bool(ceil))
    found = apply(TABLE["max_pool"], (input,), statics)
    return found if places else found[0]


def max_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    n: int, input: Tensor, size: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: int | None
) -> Tensor:
    _ranked(input, n, f"avg_pool{n}d")
    if divisor == 0:
        raise ValueError("divisor_override is not 0")
    size = spread(size, n, "kernel_size")
    by = size if stride is None or stride == () else spread(stride, n, "stride")
    return apply(TABLE["avg_pool"], (input,), (size, by, spread(padding, n, "padding"), bool(ceil), bool(padded), divisor or 0))


def avg_pool1d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def _adaptive(n: int, input: Tensor, size: Any) -> Tensor:
    _ranked(input, n, f"adaptive_avg_pool{n}d")
    want = (size,) * n if size is None or isinstance(size, int) else tuple(size)
    whole = input.shape[-n:]
    if len(want) != n:
        raise ValueError(f"an output size is one number or {n}, not {want}")
    return apply(TABLE["adaptive_avg_pool"], (input,), (tuple(d if w is None else w for w, d in zip(want, whole)),))


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    return _adaptive(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    return _adaptive(2, input, output_size)
