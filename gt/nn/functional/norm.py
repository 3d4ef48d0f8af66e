"""Normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import ones
from gt.client.functions.movement import pad
from gt.client.grad_mode import no_grad
from gt.client.saved import saves, watch
from gt.errors import ArgumentError
from gt.ops.table import TABLE
from gt.spec import bfloat16, float16, float32, float64

LERP, TRAIN = TABLE["lerp"], TABLE["batch_norm_train"]
EPS = {bfloat16: 2.0**-7, float16: 2.0**-10, float32: 2.0**-23, float64: 2.0**-52}


def _parts(weight: Tensor | None, bias: Tensor | None, shape: Sequence[int], like: Tensor) -> tuple[Tensor, ...]:
    """The parameter operands of the rows: weight and bias, a weight, or none. A bias alone gets a weight of ones."""
    if bias is None:
        return () if weight is None else (weight,)
    return (ones(*shape, dtype=like.dtype) if weight is None else weight, bias)


def _inner(input: Tensor, shape: Sequence[int], name: str) -> tuple[int, ...]:
    want = tuple(shape)
    if not want or input.shape[input.ndim - len(want) :] != want:
        raise ArgumentError(f"{name}: expected trailing dimensions {want}, got input of shape {input.shape}")
    return want


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    shape = _inner(input, normalized_shape, "layer_norm")
    return apply(TABLE["layer_norm"], (input, float(eps), *_parts(weight, bias, shape, input)), (len(shape),))[0]


def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Divided by the root mean square; `eps` is by default the dtype's."""
    shape = _inner(input, normalized_shape, "rms_norm")
    small = EPS.get(input.dtype, 0.0) if eps is None else float(eps)
    return apply(TABLE["rms_norm"], (input, small, *_parts(weight, None, shape, input)), (len(shape),))[0]


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    parts = _parts(weight, bias, input.shape[1:2], input)
    return apply(TABLE["group_norm"], (input, float(eps), *parts), (num_groups,))[0]


def _move(running: Tensor, found: Tensor, momentum: float) -> None:
    """A running value, moved towards the batch's value, off the tape."""
    was, now = running.handle, found.handle
    value = Tensor(now) if now.spec.dtype is was.spec.dtype else Tensor(now).to(was.spec.dtype)
    running.handle = apply(LERP, (Tensor(was), value, float(momentum))).handle


def batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """By the batch's mean and variance when training, which also update the running ones; else by the running ones."""
    if not input.handle.spec.numel:  # as in PyTorch: the statistics stay, and the parameters get gradients of zeros
        out = input * 1 if weight is None or not weight.numel() else input * weight[0]
        return out if bias is None or not bias.numel() else out + bias[0]
    parts = (weight, bias) if weight is not None and bias is not None else _parts(weight, bias, input.shape[1:2], input)
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("batch_norm with training=False needs running_mean and running_var")
        return apply(TABLE["batch_norm"], (input, running_mean, running_var, float(eps), *parts))
    y, mean, _, var = apply(TRAIN, (input, float(eps), *parts))
    if running_mean is not None:
        _move(running_mean, mean, momentum)
    if running_var is not None:
        _move(running_var, var, momentum)
    if y.node is not None:
        watch(y.node, (running_mean, running_var))
    return y


def instance_norm(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel of each sample by its mean and variance, or by the running ones."""
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            flat = input.reshape(*input.shape[:2], -1)
            _move(running_mean, flat.mean(axis=2).mean(axis=0), momentum)
            _move(running_var, flat.var(dim=2).mean(axis=0), momentum)
    kept = weight.clone() if weight is not None and weight.requires_grad else weight  # PyTorch saves a copy: it may change
    return group_norm(input, input.shape[1], kept, bias, eps)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Each element by the squares of its neighbours in other channels."""
    if input.ndim < 3:
        raise ArgumentError(f"local_response_norm: expected (batch, channels, ...), got {input.shape}")
    if not input.numel():
        return input
    flat = (input * input).reshape(input.shape[0], 1, input.shape[1], -1)
    flat = pad(flat, (0, 0, size // 2, (size - 1) // 2))
    near = apply(TABLE["avg_pool"], (flat,), ((size, 1), (1, 1), (0, 0), False, True, 0)).reshape(input.shape)
    return input / (near * alpha + k) ** beta


def _statistics(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """The mean and the reciprocal standard deviation along axes, which are kept with one element."""
    mean = x.mean(axes, keepdim=True)
    return mean, (x.var(axes, correction=0, keepdim=True) + eps).rsqrt()


@saves("result 1", "result 2")
def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_norm`, the means and the reciprocal standard deviations."""
    axes = tuple(range(input.ndim - len(tuple(normalized_shape)), input.ndim))
    return layer_norm(input, normalized_shape, weight, bias, eps), *_statistics(input.detach(), axes, eps)


@saves("result 1")
def native_group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`group_norm`, the means and the reciprocal standard deviations of each group."""
    groups = input.reshape(N, group, C // group * HxW)
    mean, rest = _statistics(groups, (2,), eps)
    return group_norm(input, group, weight, bias, eps), mean.squeeze(2), rest.squeeze(2)


@saves("running_mean", "running_var", "result 1", "result 2")
def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`batch_norm`, and when training the means and the reciprocal standard deviations of each channel."""
    none = input.new_zeros(0)
    y = batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        return y, none, none
    axes = (0, *range(2, input.ndim))
    mean, rest = _statistics(input.detach(), axes, eps)
    return y, mean.reshape(-1), rest.reshape(-1)
