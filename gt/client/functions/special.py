"""Special functions, as `gt.special`: rows, other names of pointwise functions, and compositions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gt.client.apply import apply, as_operand
from gt.client.autograd import Tensor
from gt.client.functions.in_place import in_place
from gt.client.functions.registry import FUNCTIONS, both, function, method
from gt.client.scope import is_grad_enabled
from gt.ops.table import TABLE, rows

SPECIAL: dict[str, Callable] = {r.name: FUNCTIONS[r.name] for r in rows("bessel") if r.pointwise}
SPECIAL |= {r.name: FUNCTIONS[r.name] for r in rows("special") if r.name in FUNCTIONS and r.pointwise}


def special(f: Callable) -> Callable:
    """A function of the `gt.special` namespace."""
    SPECIAL[f.__name__.removesuffix("_")] = f
    return f


class Parts(NamedTuple):
    """`mantissa * 2 ** exponent`."""

    mantissa: Tensor
    exponent: Tensor


@both
def frexp(input: Tensor) -> Parts:
    """The mantissa in [0.5, 1) and the exponent of each number."""
    return Parts(*apply(TABLE["frexp"], (input,)))


def _fixed(name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.requires_grad and is_grad_enabled():
        raise NotImplementedError(f"{name} has no gradient for its first argument: detach() it")


def _operands(first: Any, second: Any) -> tuple[Tensor, Any]:
    """Two operands, at least one a tensor; the first is converted to a tensor."""
    if not isinstance(first, Tensor) and not isinstance(second, Tensor):
        raise TypeError(f"expected at least one tensor, got {type(first).__name__} and {type(second).__name__}")
    if not isinstance(first, Tensor):
        first = second.new_full((), first)
    return first, second if isinstance(second, Tensor) else as_operand(second, first)


def _shares(name: str) -> None:
    def share(input: Tensor, other: Tensor) -> Tensor:
        if not isinstance(input, Tensor) or not isinstance(other, Tensor):
            raise TypeError(f"{name}: expected two tensors, got {type(input).__name__} and {type(other).__name__}")
        _fixed(name, input)
        return apply(TABLE[name], (input, other))

    share.__name__ = share.__qualname__ = name
    share.__doc__ = "The share of the gamma integral below (igamma) or above (igammac) the second argument."
    both(share)


for _name in ("igamma", "igammac"):
    _shares(_name)


@special
def zeta(input: Any, other: Any) -> Tensor:
    """Hurwitz's zeta function."""
    _fixed("zeta", input)
    return apply(TABLE["special_zeta"], _operands(input, other))


@special
def xlog1py(input: Any, other: Any) -> Tensor:
    """x log(1 + y), 0 where x is 0."""
    return apply(TABLE["xlog1py"], _operands(input, other))


def _polynomials() -> None:
    for row in rows("bessel"):
        if not row.pointwise:
            SPECIAL[row.name] = lambda input, n, _row=row: apply(_row, _operands(input, n))


_polynomials()
# Other names of functions of `gt`.
_NAMES = {
    "gammaln": "lgamma", "psi": "digamma", "expit": "sigmoid", "gammainc": "igamma", "gammaincc": "igammac",
    "multigammaln": "mvlgamma",
}  # fmt: skip
for _name in ("digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "logit", "polygamma", "round", "sinc",
              "xlogy", "softmax", "log_softmax", "logsumexp"):  # fmt: skip
    SPECIAL[_name] = lambda *args, _name=_name, **settings: FUNCTIONS[_name](*args, **settings)
for _name, _other in _NAMES.items():
    SPECIAL[_name] = lambda *args, _name=_other, **settings: FUNCTIONS[_name](*args, **settings)
for _name in ("special_zeta", "signbit", "copysign", "gcd", "lcm", "lgamma", "igamma", "igammac"):
    SPECIAL.pop(_name, None)  # rows of the family that PyTorch has in another namespace


@function
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`."""
    return apply(TABLE["polygamma"], (input,), (int(n),))


def _polygamma(self: Tensor, n: int) -> Tensor:
    return polygamma(n, self)


@both
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of `p` dimensions."""
    terms = [(input - i / 2).lgamma() for i in range(p)]
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    return total + p * (p - 1) / 4 * math.log(math.pi)


_T: Any = Tensor
_T.polygamma = _polygamma  # the tensor first
method(in_place("polygamma", _polygamma))
method(in_place("mvlgamma", mvlgamma))
