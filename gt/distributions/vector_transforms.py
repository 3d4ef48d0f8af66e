"""Transforms of vectors and matrices: onto simplices, Cholesky factors and correlation matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.join import cat, stack
from gt.distributions import constraints
from gt.distributions.elementwise_transforms import Transform
from gt.nn.functional import pad, softplus


class SoftmaxTransform(Transform):
    domain, codomain = constraints.real_vector, constraints.simplex

    def _call(self, x: Tensor) -> Tensor:
        return x.softmax(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()


class StickBreakingTransform(Transform):
    """Vectors of K - 1 numbers to K shares: each takes its part of the remainder."""

    bijective, domain, codomain = True, constraints.real_vector, constraints.simplex

    def _offset(self, x: Tensor) -> Tensor:
        n = x.shape[-1]
        return stack([full_like(x[..., 0], math.log(n - i)) for i in range(n)], -1)

    def _call(self, x: Tensor) -> Tensor:
        z = (x - self._offset(x)).sigmoid().clamp(2.0**-126, 1 - 2.0**-24)
        return pad(z, (0, 1), value=1.0) * pad((1 - z).cumprod(-1), (1, 0), value=1.0)

    def _inverse(self, y: Tensor) -> Tensor:
        crop = y[..., :-1]
        left = (1 - crop.cumsum(-1)).clamp(min=2.0**-126)
        return crop.log() - left.log() + self._offset(crop)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        x = x - self._offset(x)
        return (-x + -softplus(-x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-1], shape[-1] - 1)


class LowerCholeskyTransform(Transform):
    domain, codomain = constraints.independent(constraints.real, 2), constraints.lower_cholesky

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(0, -2, -1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(0, -2, -1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    domain, codomain = constraints.independent(constraints.real, 2), constraints.positive_definite

    def _call(self, x: Tensor) -> Tensor:
        lower = LowerCholeskyTransform()(x)
        return lower @ lower.mT

    def _inverse(self, y: Tensor) -> Tensor:
        return LowerCholeskyTransform().inv(y.cholesky())


class CorrCholeskyTransform(Transform):
    """Numbers to the Cholesky factor of a correlation matrix, by the angles' tangents."""

    bijective, domain, codomain = True, constraints.real_vector, constraints.corr_cholesky

    def _size(self, length: int) -> int:
        n = round((0.25 + 2 * length) ** 0.5 + 0.5)
        if n * (n - 1) // 2 != length:
            raise ValueError(f"expected n (n - 1) / 2 numbers, a triangle below a diagonal, got {length}")
        return n

    def _call(self, x: Tensor) -> Tensor:
        x = x.tanh()
        n, rows, at = self._size(x.shape[-1]), [], 0
        for i in range(n):
            r = x[..., at : at + i]
            at += i
            left = (1 - r * r).clamp(min=2.0**-50)
            root = pad(left.cumprod(-1).sqrt(), (1, 0), value=1.0)  # (..., i + 1)
            rows.append(pad(pad(r, (0, 1), value=1.0) * root, (0, n - i - 1)))
        return stack(rows, -2)

    def _inverse(self, y: Tensor) -> Tensor:
        parts = []
        for i in range(1, y.shape[-1]):
            row = y[..., i, :i]
            used = pad((row * row).cumsum(-1)[..., :-1], (1, 0), value=0.0)
            parts.append((row / (1 - used).clamp(min=2.0**-50).sqrt()).atanh())
        return cat(parts, -1)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total: Any = (-2 * (x + softplus(-2 * x) - math.log(2.0))).sum(-1)
        for i in range(2, y.shape[-1]):
            row = y[..., i, :i]
            total = total + 0.5 * (1 - (row * row).cumsum(-1)[..., :-1]).log().sum(-1)
        return total

    def forward_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        n = self._size(shape[-1])
        return (*shape[:-1], n, n)

    def inverse_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*shape[:-2], shape[-1] * (shape[-1] - 1) // 2)
