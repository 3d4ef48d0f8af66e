"""Distributions over vectors and matrices."""

from __future__ import annotations

import math
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import eye, full_like
from gt.client.functions.elementwise import where
from gt.client.functions.join import stack
from gt.client.functions.random import randn
from gt.client.grad_mode import no_grad
from gt.distributions import constraints
from gt.distributions.distribution import Distribution, ExponentialFamily, Shape, broadcast_all
from gt.distributions.positive import Beta
from gt.distributions.real_line import HALF_LOG_2PI
from gt.distributions.sampling import standard_gamma
from gt.linalg import cholesky, solve_triangular
from gt.nn.functional import one_hot, pad
from gt.ops.rules import broadcast


def _half_log_det(lower: Tensor) -> Tensor:
    return lower.diagonal(0, -2, -1).log().sum(-1)


def _solve(lower: Tensor, vectors: Tensor) -> Tensor:
    """The vectors along the last axis through the inverse of a lower triangle; batches broadcast."""
    batch = tuple(broadcast(tuple(lower.shape[:-2]), tuple(vectors.shape[:-1])))
    n = lower.shape[-1]
    return solve_triangular(lower.expand((*batch, n, n)), vectors.expand((*batch, n)).unsqueeze(-1), upper=False).squeeze(-1)


class MultivariateNormal(Distribution):
    """By its covariance, its precision, or the Cholesky factor of its covariance."""

    arg_constraints = {"loc": constraints.real_vector, "covariance_matrix": constraints.positive_definite,
                       "precision_matrix": constraints.positive_definite, "scale_tril": constraints.lower_cholesky}  # fmt: skip
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        forms = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        given = [name for name, value in forms.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"MultivariateNormal takes one of {', '.join(forms)}, not {len(given)}")
        if loc.ndim < 1:
            raise ValueError("loc of MultivariateNormal is a vector, or a batch of them")
        matrix: Any = forms[given[0]]
        if matrix.ndim < 2:
            raise ValueError(f"{given[0]} of MultivariateNormal is a matrix, or a batch of them")
        batch = tuple(broadcast(tuple(matrix.shape[:-2]), tuple(loc.shape[:-1])))
        n = loc.shape[-1]
        self.loc = loc.expand((*batch, n))
        matrix = matrix.expand((*batch, n, n))
        setattr(self, f"_{given[0]}", matrix)
        self._given = ("loc", given[0])
        self._unbroadcasted_scale_tril = (
            matrix
            if given[0] == "scale_tril"
            else cholesky(matrix)
            if given[0] == "covariance_matrix"
            else _of_precision(matrix)
        )
        super().__init__(batch, (n,), validate_args)

    mean = mode = property(lambda self: self.loc)
    scale_tril = property(lambda self: self._unbroadcasted_scale_tril)

    @property
    def covariance_matrix(self) -> Tensor:
        lower = self.scale_tril
        return lower @ lower.mT

    @property
    def precision_matrix(self) -> Tensor:
        lower = self.scale_tril
        inverse = solve_triangular(lower, eye(lower.shape[-1], dtype=lower.dtype).expand(lower.shape), upper=False)
        return inverse.mT @ inverse

    @property
    def variance(self) -> Tensor:
        return (self.scale_tril**2).sum(-1)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        eps = randn(self._extended_shape(sample_shape), dtype=self.loc.dtype)
        return self.loc + (self.scale_tril @ eps.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        z = _solve(self.scale_tril, self._validate_sample(value) - self.loc)
        return -0.5 * (z * z).sum(-1) - _half_log_det(self.scale_tril) - self.event_shape[0] * HALF_LOG_2PI

    def entropy(self) -> Tensor:
        return self.event_shape[0] * (0.5 + HALF_LOG_2PI) + _half_log_det(self.scale_tril)


def _of_precision(precision: Tensor) -> Tensor:
    """The Cholesky factor of the inverse: that of the reversed matrix, reversed."""
    lower = cholesky(precision.flip((-2, -1)))
    turned = lower.flip((-2, -1)).mT
    return solve_triangular(turned, eye(turned.shape[-1], dtype=turned.dtype).expand(turned.shape), upper=False)


class LowRankMultivariateNormal(Distribution):
    """A covariance of a thin factor times itself and a diagonal."""

    arg_constraints = {"loc": constraints.real_vector, "cov_factor": constraints.independent(constraints.real, 2),
                       "cov_diag": constraints.independent(constraints.positive, 1)}  # fmt: skip
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None) -> None:
        n = loc.shape[-1]
        if cov_factor.ndim < 2 or cov_factor.shape[-2] != n or cov_diag.shape[-1] != n:
            raise ValueError(f"loc of {n} elements takes cov_factor of shape (..., {n}, rank) and cov_diag of (..., {n})")
        batch = tuple(broadcast(tuple(loc.shape[:-1]), tuple(cov_factor.shape[:-2]), tuple(cov_diag.shape[:-1])))
        self.loc, self.cov_diag = loc.expand((*batch, n)), cov_diag.expand((*batch, n))
        self.cov_factor = cov_factor.expand((*batch, n, cov_factor.shape[-1]))
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        inner = scaled @ self.cov_factor
        self._capacitance = cholesky(inner + eye(inner.shape[-1], dtype=loc.dtype))
        super().__init__(batch, (n,), validate_args)

    mean = mode = property(lambda self: self.loc)
    variance = property(lambda self: (self.cov_factor**2).sum(-1) + self.cov_diag)
    covariance_matrix = property(lambda self: self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed())
    scale_tril = property(lambda self: cholesky(self.covariance_matrix))

    @property
    def precision_matrix(self) -> Tensor:
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        a = solve_triangular(self._capacitance, scaled, upper=False)
        return (1 / self.cov_diag).diag_embed() - a.mT @ a

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        thin = randn((*shape[:-1], self.cov_factor.shape[-1]), dtype=self.loc.dtype)
        wide = randn(shape, dtype=self.loc.dtype)
        return self.loc + (self.cov_factor @ thin.unsqueeze(-1)).squeeze(-1) + self.cov_diag.sqrt() * wide

    def _log_det(self) -> Tensor:
        return 2 * _half_log_det(self._capacitance) + self.cov_diag.log().sum(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        diff = self._validate_sample(value) - self.loc
        scaled = self.cov_factor.mT / self.cov_diag.unsqueeze(-2)
        projected = _solve(self._capacitance, (scaled @ diff.unsqueeze(-1)).squeeze(-1))
        mahalanobis = (diff**2 / self.cov_diag).sum(-1) - (projected**2).sum(-1)
        return -0.5 * (self.event_shape[0] * 2 * HALF_LOG_2PI + self._log_det() + mahalanobis)

    def entropy(self) -> Tensor:
        return 0.5 * (self.event_shape[0] * (1 + 2 * HALF_LOG_2PI) + self._log_det())


class Dirichlet(ExponentialFamily):
    """Shares that add up to 1."""

    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}
    support = constraints.simplex
    has_rsample = True

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        (self.concentration,) = broadcast_all(concentration)
        if self.concentration.ndim < 1:
            raise ValueError("concentration of Dirichlet is a vector, or a batch of them")
        super().__init__(self.concentration.shape[:-1], self.concentration.shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    @property
    def mode(self) -> Tensor:
        less = (self.concentration - 1).clamp(min=0.0)
        found = less / less.sum(-1, keepdim=True)
        corner = one_hot(found.nan_to_num(0.0).argmax(-1), self.event_shape[0]).to(found.dtype)
        return where((self.concentration < 1).all(-1, keepdim=True), corner, found)

    @property
    def variance(self) -> Tensor:
        a, total = self.concentration, self.concentration.sum(-1, keepdim=True)
        return a * (total - a) / (total**2 * (total + 1))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        drawn = standard_gamma(self.concentration.expand(self._extended_shape(sample_shape)))
        return drawn / drawn.sum(-1, keepdim=True)

    def log_prob(self, value: Tensor) -> Tensor:
        value, a = self._validate_sample(value), self.concentration
        return (a - 1).xlogy(value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, k = self.concentration, self.event_shape[0]
        total = a.sum(-1)
        return a.lgamma().sum(-1) - total.lgamma() - (k - total) * total.digamma() - ((a - 1.0) * a.digamma()).sum(-1)


def _mvdigamma(x: Tensor, p: int) -> Tensor:
    parts = [(x - i / 2).digamma() for i in range(p)]
    return stack(parts, -1).sum(-1)


class Wishart(ExponentialFamily):
    """Sums of outer products of normal vectors."""

    arg_constraints = {"covariance_matrix": constraints.positive_definite, "precision_matrix": constraints.positive_definite,
                       "scale_tril": constraints.lower_cholesky, "df": constraints.greater_than(0)}  # fmt: skip
    support = constraints.positive_definite
    has_rsample = True

    def __init__(
        self, df: Any, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        forms = {"covariance_matrix": covariance_matrix, "precision_matrix": precision_matrix, "scale_tril": scale_tril}
        given = [name for name, value in forms.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"Wishart takes one of {', '.join(forms)}, not {len(given)}")
        matrix: Any = forms[given[0]]
        if matrix.ndim < 2:
            raise ValueError(f"{given[0]} of Wishart is a matrix, or a batch of them")
        n = matrix.shape[-1]
        if isinstance(df, (int, float)):
            if df <= n - 1:
                raise ValueError(f"df is {df}: expected more than {n - 1}, the size of the matrix less 1")
            df = full_like(matrix[..., 0, 0], float(df))
        batch = tuple(broadcast(tuple(matrix.shape[:-2]), tuple(df.shape)))
        self.df, matrix = df.expand(batch), matrix.expand((*batch, n, n))
        self._given = ("df", given[0])
        self._tril = (
            matrix
            if given[0] == "scale_tril"
            else cholesky(matrix)
            if given[0] == "covariance_matrix"
            else (_of_precision(matrix))
        )
        super().__init__(batch, (n, n), validate_args)

    scale_tril = property(lambda self: self._tril)
    covariance_matrix = property(lambda self: self._tril @ self._tril.mT)

    @property
    def precision_matrix(self) -> Tensor:
        identity = eye(self._tril.shape[-1], dtype=self._tril.dtype).expand(self._tril.shape)
        inverse = solve_triangular(self._tril, identity, upper=False)
        return inverse.mT @ inverse

    def _of_df(self) -> Tensor:
        return self.df.reshape((*self.df.shape, 1, 1))

    mean = property(lambda self: self._of_df() * self.covariance_matrix)

    @property
    def mode(self) -> Tensor:
        left = self._of_df() - self.event_shape[0] - 1
        return where(left > 0, left * self.covariance_matrix, math.nan)

    @property
    def variance(self) -> Tensor:
        v = self.covariance_matrix
        diagonal = v.diagonal(0, -2, -1)
        return self._of_df() * (v**2 + diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Bartlett's decomposition."""
        n = self.event_shape[0]
        shape = self._extended_shape(sample_shape)
        freedom = stack([self.df - i for i in range(n)], -1).expand(shape[:-1])
        diagonal = (2 * standard_gamma(freedom / 2)).sqrt().diag_embed()
        factor = self._tril @ (randn(shape, dtype=self._tril.dtype).tril(-1) + diagonal)
        return factor @ factor.mT

    def log_prob(self, value: Tensor) -> Tensor:
        value, n, nu = self._validate_sample(value), self.event_shape[0], self.df
        trace = (value * self.precision_matrix).sum(-1).sum(-1)
        log_det = 2 * _half_log_det(cholesky(value))
        norm = -nu * (n * math.log(2) / 2 + _half_log_det(self._tril)) - (nu / 2).mvlgamma(n)
        return norm + (nu - n - 1) / 2 * log_det - trace / 2

    def entropy(self) -> Tensor:
        n, nu = self.event_shape[0], self.df
        log_det = _half_log_det(self._tril)
        return ((n + 1) * (n * math.log(2) / 2 + log_det) + (nu / 2).mvlgamma(n)
                - (nu - n - 1) / 2 * _mvdigamma(nu / 2, n) + nu * n / 2)  # fmt: skip


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices."""

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"dim is {dim}: expected an integer of at least 2")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Distribution:
        return LKJCholesky(self.dim, self.concentration.expand(tuple(batch_shape)), validate_args=False)

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """The onion method: row by row, a length from a beta and a direction from a normal distribution."""
        with no_grad():
            shape, n = (*sample_shape, *self.batch_shape), self.dim
            marginal = self.concentration + 0.5 * (n - 2)
            rows = [pad(full_like(marginal, 1.0).expand(shape).unsqueeze(-1), (0, n - 1))]
            for i in range(1, n):
                # row i has i numbers left of the diagonal
                share = Beta(full_like(marginal, i / 2), marginal - 0.5 * (i - 1)).sample(sample_shape)
                direction = randn((*shape, i), dtype=self.concentration.dtype)
                direction = direction / (direction**2).sum(-1, keepdim=True).sqrt()
                left = direction * share.sqrt().unsqueeze(-1)
                last = (1 - share).clamp(min=1e-30).sqrt().unsqueeze(-1)
                rows.append(pad(left, (0, n - i)) + pad(last, (i, n - i - 1)))
            return stack(rows, -2)

    def log_prob(self, value: Tensor) -> Tensor:
        value, n = self._validate_sample(value), self.dim
        diagonal = value.diagonal(0, -2, -1)[..., 1:]
        orders = stack([2 * (self.concentration - 1) + n - i for i in range(2, n + 1)], -1)
        alpha = self.concentration + 0.5 * (n - 1)
        norm = 0.5 * (n - 1) * math.log(math.pi) + (alpha - 0.5).mvlgamma(n - 1) - alpha.lgamma() * (n - 1)
        return (orders * diagonal.log()).sum(-1) - norm
