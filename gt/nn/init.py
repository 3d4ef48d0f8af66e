"""Initialisation of parameters: each function fills a tensor in place, off the tape, and returns it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.create import eye, from_numpy, full
from gt.client.functions.random import rand, randn
from gt.client.grad_mode import no_grad
from gt.client.writes import overwrite


def _filled(t: Tensor, value: Tensor) -> Tensor:
    """The variable with a new value of its shape and dtype."""
    if value.handle.spec.shape != t.handle.spec.shape:
        raise ValueError(f"cannot fill {t.shape} with {value.shape}")
    overwrite(t, value.to(t.handle.spec.dtype).handle)
    return t


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The gain of a nonlinearity."""
    plain = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid")
    if nonlinearity in plain:
        return 1.0
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    gains = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in gains:
        raise ValueError(f"no nonlinearity {nonlinearity!r}: known are {', '.join([*plain, 'leaky_relu', *gains])}")
    return gains[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    """The fan-in and the fan-out of a weight."""
    shape = tensor.handle.spec.shape
    if len(shape) < 2:
        raise ValueError(f"a tensor of {shape} has no inputs and outputs: expected 2 dimensions or more")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


_calculate_fan_in_and_fan_out = _fans  # by PyTorch's name for it, which scripts call


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"no mode {mode!r}: known are fan_in, fan_out")
    return _fans(tensor)[mode == "fan_out"]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    with no_grad():
        return _filled(tensor, rand(*tensor.shape, generator=generator) * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    with no_grad():
        return _filled(tensor, randn(*tensor.shape, generator=generator) * std + mean)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Tensor:
    """Normal numbers within [a, b], by the inverse of the cumulative distribution."""

    def below(x: float) -> float:
        return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0

    low, high = below((a - mean) / std), below((b - mean) / std)
    with no_grad():
        u = rand(*tensor.shape, generator=generator) * (2 * high - 2 * low) + (2 * low - 1)
        x = u.erfinv() * (std * math.sqrt(2.0)) + mean
        return _filled(tensor, x.clamp(min=a, max=b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    return _filled(tensor, full(tensor.shape, val, dtype=tensor.dtype))


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    if tensor.ndim != 2:
        raise ValueError(f"eye_: expected 2 dimensions, got {tensor.shape}")
    return _filled(tensor, eye(*tensor.shape, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution's weight so that it is the identity."""
    shape = tensor.shape
    if not 3 <= len(shape) <= 5 or shape[0] % groups:
        raise ValueError(f"dirac_: expected the weight of a convolution in {groups} groups, got {shape}")
    array = np.zeros(shape, np.float32)
    per = shape[0] // groups
    for g in range(groups):
        for i in range(min(per, shape[1])):
            array[(g * per + i, i, *(d // 2 for d in shape[2:]))] = 1
    return _filled(tensor, from_numpy(array))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    bound = math.sqrt(3.0) * gain * math.sqrt(2.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """Orthonormal rows, or columns if there are fewer of them."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_: expected 2 dimensions or more, got {tensor.shape}")
    rows, columns = tensor.shape[0], tensor.numel() // max(tensor.shape[0], 1)
    with no_grad():
        tall = randn(max(rows, columns), min(rows, columns), generator=generator)
        q, r = tall.qr()
        q = q * r.diagonal().sign()  # so that the distribution is uniform
        return _filled(tensor, (q.mT if rows < columns else q).reshape(tensor.shape) * gain)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Normal numbers, with this share of each column set to 0."""
    if tensor.ndim != 2:
        raise ValueError(f"sparse_: expected 2 dimensions, got {tensor.shape}")
    with no_grad():
        zero = math.ceil(sparsity * tensor.shape[0])
        order = rand(*tensor.shape, generator=generator).argsort(0).argsort(0)  # a random order of the rows in each column
        return _filled(tensor, randn(*tensor.shape, generator=generator) * std * (order >= zero).to(tensor.dtype))


# PyTorch's names before 0.4, which change their tensor as well
constant, dirac, normal, orthogonal, sparse, uniform = constant_, dirac_, normal_, orthogonal_, sparse_, uniform_
kaiming_normal, kaiming_uniform, xavier_normal, xavier_uniform = (
    kaiming_normal_,
    kaiming_uniform_,
    xavier_normal_,
    xavier_uniform_,
)
