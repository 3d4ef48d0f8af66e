"""Functions of analysis, windows, distances and areas."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions import FUNCTIONS, as_tensor, both, function, method
from gt.client.functions import scatter as scatter  # renorm must be there first
from gt.client.functions.create import arange, from_numpy, full
from gt.client.session import last_id
from gt.client.writes import assign
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import dtype_of, int64


class Parts(NamedTuple):
    """A number as mantissa * 2 ** exponent."""

    mantissa: Tensor
    exponent: Tensor


@both
def frexp(input: Tensor) -> Parts:
    """Each number as a fraction from a half to one, and a power of two."""
    return Parts(*apply(TABLE["frexp"], (input,)))


@function
def polygamma(n: int, input: Tensor) -> Tensor:
    """The n-th derivative of `digamma`."""
    return apply(TABLE["polygamma"], (input,), (int(n),))


@method
def polygamma_of(self: Tensor, n: int) -> Tensor:
    return polygamma(n, self)


_T: Any = Tensor
_T.polygamma = _T.polygamma_of
del _T.polygamma_of


@both
def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The logarithm of the gamma function of `p` dimensions."""
    terms = [(input - i / 2).lgamma() for i in range(p)]
    total = terms[0]
    for t in terms[1:]:
        total = total + t
    return total + p * (p - 1) / 4 * math.log(math.pi)


@both
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Zero within `lambd` of zero."""
    return ((input >= -lambd) & (input <= lambd)).pick(0.0, input)


@both
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """A slope for what is negative, one for all or one for each channel."""
    if weight.ndim > 1 or (weight.numel() != 1 and (input.ndim < 2 or input.shape[1] != weight.numel())):
        raise ArgumentError(f"prelu of {input.shape} wants one slope or one for each channel, not {weight.shape}")
    slope = weight.reshape(()) if weight.numel() == 1 else weight.reshape((1, -1) + (1,) * (input.ndim - 2))
    return (input > 0).pick(input, input * slope)


def _in_place(name: str) -> None:
    f = getattr(Tensor, name)

    def change(self: Tensor, *args: Any, **settings: Any) -> Tensor:
        since = last_id(self.handle.session)
        return assign(self, f(self, *args, **settings), since=since)

    change.__name__ = change.__qualname__ = f"{name}_"
    change.__doc__ = f"`{name}`, into this variable."
    method(change)


for _name in ("polygamma", "mvlgamma", "renorm"):
    _in_place(_name)


@function
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Which elements stand among others."""
    x, among = as_tensor(elements), as_tensor(test_elements).reshape(-1)
    found = (x.unsqueeze(-1) == among).any(-1) if among.numel() else full(x.shape, False)
    return ~found if invert else found


@function
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The area under lines between the points."""
    return _slabs(y, x, dim).sum(dim) * (dx / 2 if x is None else 0.5)


@function
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    return _slabs(y, x, dim).cumsum(dim) * (dx / 2 if x is None else 0.5)


FUNCTIONS["trapz"] = trapezoid


def _slabs(y: Tensor, x: Tensor | None, dim: int) -> Tensor:
    """Twice the area between neighbours, which are 1 apart or where `x` says."""
    at = axis_of(dim, y.ndim)
    n = max(y.shape[at] - 1, 0)
    both = y.narrow(at, min(1, y.shape[at]), n) + y.narrow(at, 0, n)
    if x is None:
        return both
    if x.ndim == 1:
        x = x.reshape((-1,) + (1,) * (y.ndim - at - 1))
        return both * (x.narrow(0, 1, n) - x.narrow(0, 0, n))
    return both * (x.narrow(at, 1, n) - x.narrow(at, 0, n))


@function
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """How far each row of one is from each row of the other."""
    return (x1.unsqueeze(-2) - x2.unsqueeze(-3)).norm(float(p), dim=-1)


@function
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """How far each row is from those after it."""
    i, j = np.triu_indices(input.shape[0], 1)
    first, second = (input.index_select(0, from_numpy(k.astype(np.int64))) for k in (i, j))
    return (first - second).norm(float(p), dim=-1)


@function
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Every choice of `r` elements, in order."""
    import itertools

    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return input.index_select(0, from_numpy(places.reshape(-1))).reshape(places.shape)


@function
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Places among all elements as places along each axis."""
    if indices.dtype.rank != 1:
        raise ArgumentTypeError(f"unravel_index wants integers, not {indices.dtype.name}")
    found, rest = [], indices.to(int64)
    for d in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        found.append(rest % d)
        rest = rest // d
    return tuple(reversed(found))


@function
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    from gt.ops.rules import broadcast

    return broadcast(*[(s,) if isinstance(s, int) else tuple(s) for s in shapes]) if shapes else ()


@function
def vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    """Powers of each element, falling unless told otherwise."""
    n = x.shape[0] if N is None else N
    powers = arange(n) if increasing else arange(n - 1, -1, -1) if n else arange(0)
    return x.unsqueeze(-1) ** powers.to(x.dtype if x.dtype.rank == 2 else int64)


@function
def range_(start: float, end: float | None = None, step: float = 1, dtype: Any = None) -> Tensor:
    """As the old torch.range: the end included."""
    start, end = (0, start) if end is None else (start, end)
    n = math.floor((end - start) / step) + 1
    return (arange(n) * step + start).to(dtype or DEFAULT.dtype)


FUNCTIONS["range"] = FUNCTIONS.pop("range_")


def _window(name: str, terms: tuple[float, ...]) -> None:
    def window(window_length: int, periodic: bool = True, dtype: Any = None, requires_grad: bool = False) -> Tensor:
        if window_length == 1:
            return full((1,), 1.0, dtype=dtype or DEFAULT.dtype)
        turn = arange(window_length).to(dtype_of(dtype or DEFAULT.dtype)) * (2 * math.pi / (window_length - (not periodic)))
        total: Any = terms[0]
        for k, a in enumerate(terms[1:], 1):
            total = total + (turn * k).cos() * a
        return total

    window.__name__ = window.__qualname__ = name
    window.__doc__ = "Weights that fade towards the ends."
    function(window)


_window("hann_window", (0.5, -0.5))
_window("hamming_window", (0.54, -0.46))
_window("blackman_window", (0.42, -0.5, 0.08))


@function
def bartlett_window(window_length: int, periodic: bool = True, dtype: Any = None) -> Tensor:
    if window_length == 1:
        return full((1,), 1.0, dtype=dtype or DEFAULT.dtype)
    at = arange(window_length).to(dtype_of(dtype or DEFAULT.dtype)) * (2.0 / (window_length - (not periodic)))
    return 1.0 - (at - 1.0).abs()


@function
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, dtype: Any = None) -> Tensor:
    if window_length == 1:
        return full((1,), 1.0, dtype=dtype or DEFAULT.dtype)
    at = arange(window_length).to(dtype_of(dtype or DEFAULT.dtype)) * (2.0 / (window_length - (not periodic))) - 1.0
    return ((1.0 - at * at).clamp(min=0.0).sqrt() * beta).i0() / full((), beta, dtype=at.dtype).i0()


@function
def scalar_tensor(
    s: Any, dtype: Any = None, device: Any = None, layout: Any = None, pin_memory: bool = False, requires_grad: bool = False
) -> Tensor:
    return full((), s, dtype=dtype or DEFAULT.dtype)


@function
def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    return FUNCTIONS["as_tensor"](obj, dtype=dtype)


@function
def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0) -> Tensor:
    """A tensor holding a copy of bytes."""
    return from_numpy(np.frombuffer(buffer, dtype_of(dtype).name, count, offset))


for _name in ("detach", "detach_", "zero_", "fill_", "positive"):
    FUNCTIONS[_name] = getattr(Tensor, _name)
