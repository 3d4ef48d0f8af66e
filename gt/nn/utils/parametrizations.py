"""Weights of a given norm: as a direction and a length, or divided by their largest singular value."""

from __future__ import annotations

from typing import Any

from gt import missing_names
from gt.client.autograd import Tensor
from gt.client.functions.random import randn
from gt.client.grad_mode import no_grad
from gt.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization


def norm_except(v: Tensor, dim: int | None) -> Tensor:
    """The norm over all axes but one (or over all), with axes kept."""
    if dim is None or dim == -1:
        return (v * v).sum().sqrt()
    axes = tuple(i for i in range(v.ndim) if i != dim % v.ndim)
    return (v * v).sum(axes, keepdim=True).sqrt() if axes else v.abs()


class WeightNorm(Module):
    """`original0` is the length, `original1` the direction."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except(weight_v, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return norm_except(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    return register_parametrization(module, name, WeightNorm(dim), unsafe=True)


def unit(x: Tensor, eps: float) -> Tensor:
    return x / (x * x).sum().sqrt().clamp(min=eps)


class SpectralNorm(Module):
    """The largest singular value is estimated by power iteration, a step or more at each use in training."""

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ValueError(f"n_power_iterations is {n_power_iterations}: expected 1 or more")
        self.dim, self.eps, self.n_power_iterations = dim % weight.ndim, eps, n_power_iterations
        self.vector = weight.ndim == 1
        if not self.vector:
            with no_grad():
                matrix = self._matrix(weight.detach())
                self.register_buffer("_u", unit(randn(matrix.shape[0], dtype=weight.dtype), eps))
                self.register_buffer("_v", unit(randn(matrix.shape[1], dtype=weight.dtype), eps))
                self._iterate(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        order = (self.dim, *(i for i in range(weight.ndim) if i != self.dim))
        return weight.permute(order).reshape((weight.shape[self.dim], -1))

    def _iterate(self, matrix: Tensor, times: int) -> None:
        for _ in range(times):
            self._u = unit(matrix @ self._v, self.eps)
            self._v = unit(matrix.t() @ self._u, self.eps)

    def forward(self, weight: Tensor) -> Tensor:
        if self.vector:
            return unit(weight, self.eps)
        matrix = self._matrix(weight)
        if self.training:
            with no_grad():
                self._iterate(matrix.detach(), self.n_power_iterations)
        sigma = (self._u.detach() * (matrix @ self._v.detach())).sum()
        return weight / sigma

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def axis_of_outputs(module: Module, dim: int | None) -> int:
    transposed = isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d))
    return (1 if transposed else 0) if dim is None else dim


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    weight: Any = getattr(module, name)
    return register_parametrization(module, name, SpectralNorm(weight, n_power_iterations, axis_of_outputs(module, dim), eps))


__getattr__ = missing_names.of(__name__)
