"""Bessel and Airy functions, and families of orthogonal polynomials, elementwise, under PyTorch's names. They have no
gradients, as in PyTorch."""

from __future__ import annotations

from functools import partial

from gt.ops import table
from gt.ops.elementwise import X
from gt.ops.rules import by_axis, pointwise_float
from gt.ops.table import Operand, Try, Values
from gt.spec import Spec, float32, int64

op = partial(table.op, pointwise=True, shard=by_axis)

# Between 2 and 20 PyTorch's bessel_j0 and related functions have seven digits in float64, so engines are compared outside.
ANY: Try = ((Values(X, -2.0, 2.0),), {})
NEAR: Try = ((Values(X, 0.1, 2.0),), {})
FAR: Try = ((Values(X, 26.0, 60.0),), {})
WHOLE: Try = ((Values(Spec((3,), int64), 1, 4),), {})


def _wide(name: str):
    """Broadcast and promote; integers become float32, and 16-bit floats are refused."""

    def rule(*operands: Operand) -> Spec:
        out = pointwise_float(*operands)
        if out.dtype.size < 4:
            raise TypeError(f"{name}: expected float32 or float64, got {out.dtype.name}: cast first")
        return out

    return rule


def _function(name: str, *tries: Try) -> None:
    op(name, shape=_wide(name), tries=(*tries, WHOLE), kernel=lambda xp, a, _name=name: getattr(xp, _name)(a))


for _name in ("airy_ai", "bessel_j0", "bessel_j1", "modified_bessel_i0", "modified_bessel_i1", "spherical_bessel_j0"):
    _function(_name, ANY, FAR)
for _name in ("bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1", "scaled_modified_bessel_k0",
              "scaled_modified_bessel_k1"):  # fmt: skip
    _function(_name, NEAR, FAR)

# Each polynomial: the first one, and the recurrence from the last two, at x and k.
_POLYNOMIALS = {
    "chebyshev_polynomial_t": (lambda x: x, lambda x, k, p, q: 2.0 * x * p - q),
    "chebyshev_polynomial_u": (lambda x: 2.0 * x, lambda x, k, p, q: 2.0 * x * p - q),
    "chebyshev_polynomial_v": (lambda x: 2.0 * x - 1.0, lambda x, k, p, q: 2.0 * x * p - q),
    "chebyshev_polynomial_w": (lambda x: 2.0 * x + 1.0, lambda x, k, p, q: 2.0 * x * p - q),
    "hermite_polynomial_h": (lambda x: 2.0 * x, lambda x, k, p, q: 2.0 * x * p - 2.0 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda x, k, p, q: x * p - k * q),
    "laguerre_polynomial_l": (lambda x: 1.0 - x, lambda x, k, p, q: ((2.0 * k + 1.0 - x) * p - k * q) / (k + 1.0)),
    "legendre_polynomial_p": (lambda x: x, lambda x, k, p, q: ((2.0 * k + 1.0) * x * p - k * q) / (k + 1.0)),
}
DEGREE = 1 << 16  # each degree takes a pass over the tensor, and a client's number must not occupy a worker for ever


def check_degree(n: float) -> None:
    if n > DEGREE:
        raise ValueError(f"a polynomial: expected a degree of at most {DEGREE}, got {n}")


def _polynomial(first, following, shifted):
    def kernel(xp, x, n):
        x, n = xp.broadcast_arrays(xp.asarray(x) * 1.0, xp.trunc(xp.asarray(n) * 1.0))
        z = 2.0 * x - 1.0 if shifted else x
        before, now = 0.0 * z + 1.0, first(z)
        found = xp.where(n == 0, before, xp.where(n == 1, now, 0.0 * z))
        highest = int(xp.max(n, axis=tuple(range(n.ndim)))) if n.size else 0
        check_degree(highest)
        for k in range(1, highest):
            before, now = now, following(z, float(k), now, before)
            found = xp.where(n == k + 1, now, found)
        return found

    return kernel


_DEGREES: tuple[Try, ...] = (((Values(X, -0.9, 0.9), Values(Spec((3,), float32), 0, 7)), {}), ((Values(X, -0.9, 0.9), 3), {}))
for _name, (_first, _following) in _POLYNOMIALS.items():
    table.op(_name, shape=_wide(_name), shard=by_axis, tries=_DEGREES, kernel=_polynomial(_first, _following, False))
    if _name.startswith("chebyshev"):
        _shifted = f"shifted_{_name}"
        table.op(_shifted, shape=_wide(_shifted), shard=by_axis, tries=_DEGREES, kernel=_polynomial(_first, _following, True))
