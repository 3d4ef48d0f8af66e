"""Window functions, as `gt.signal.windows` and as functions of `gt`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import arange, full, linspace, tensor, zeros
from gt.client.functions.registry import function
from gt.spec import DType, dtype_of, float32, float64

WINDOWS: dict[str, Callable] = {}


def _window(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A window function from `make(M, whole, dtype, **settings)`; `whole` is the period of the shape. Windows of length 0, and
    of length 1 where the shape has `whole - 1` equal parts, are the same for all."""
    name = make.__name__.removesuffix("_")

    def window(
        M: int, *, sym: bool = True, dtype: Any = None, layout: Any = None, device: Any = None, requires_grad: bool = False,
        **settings: Any,
    ) -> Tensor:  # fmt: skip
        result_dtype = dtype_of(dtype or DEFAULT.dtype)
        if M < 0:
            raise ValueError(f"{name}: expected a length of 0 or more, got {M}")
        if result_dtype not in (float32, float64):
            raise ValueError(f"{name}: expected float32 or float64, got {result_dtype.name}")
        if layout not in (None, "strided") and str(layout) != "torch.strided":
            raise ValueError(f"{name}: expected a strided layout, got {layout}")
        made = (
            make(M, sym, result_dtype, **settings)
            if M
            else (make(2, sym, result_dtype, **settings), zeros(0, dtype=result_dtype))[1]
        )
        return made.requires_grad_() if requires_grad and made.node is None else made

    window.__name__ = window.__qualname__ = name
    window.__doc__ = make.__doc__
    WINDOWS[name] = window
    return window


def _even(start: float, step: float, M: int, dtype: DType) -> Tensor:
    return linspace(start * step, (start + (M - 1)) * step, M, dtype=dtype)


@_window
def exponential(M: int, sym: bool, dtype: DType, center: float | None = None, tau: float = 1.0) -> Tensor:
    """Exponential decay by a factor e over `tau` elements from the centre."""
    if tau <= 0:
        raise ValueError(f"expected a positive tau, got {tau}")
    if sym and center is not None:
        raise ValueError("expected sym=False or no center: a symmetric window is centred")
    middle = (M if not sym and M > 1 else M - 1) / 2.0 if center is None else center
    return (-_even(-middle, 1.0 / tau, M, dtype).abs()).exp()


@_window
def cosine(M: int, sym: bool, dtype: DType) -> Tensor:
    """Half a period of a sine."""
    return _even(0.5, math.pi / (M + 1 if not sym and M > 1 else M), M, dtype).sin()


@_window
def gaussian(M: int, sym: bool, dtype: DType, std: float = 1.0) -> Tensor:
    """A Gaussian."""
    if std <= 0:
        raise ValueError(f"expected a positive standard deviation, got {std}")
    at = _even(-(M if not sym and M > 1 else M - 1) / 2.0, 1.0 / (std * math.sqrt(2.0)), M, dtype)
    return (-at * at).exp()


@_window
def kaiser(M: int, sym: bool, dtype: DType, beta: float = 12.0) -> Tensor:
    """The Kaiser window, by Bessel functions."""
    if beta < 0:
        raise ValueError(f"expected a beta of 0 or more, got {beta}")
    if M == 1:
        return full((1,), 1.0, dtype=dtype)
    step = 2.0 * beta / (M if not sym else M - 1)
    at = linspace(-beta, min(beta, -beta + (M - 1) * step), M, dtype=dtype)
    return (beta * beta - at * at).clamp(min=0.0).sqrt().i0() / full((), beta, dtype=dtype).i0()


@_window
def bartlett(M: int, sym: bool, dtype: DType) -> Tensor:
    """A triangle."""
    if M == 1:
        return full((1,), 1.0, dtype=dtype)
    step = 2.0 / (M if not sym else M - 1)
    return 1.0 - linspace(-1.0, -1.0 + (M - 1) * step, M, dtype=dtype).abs()


@_window
def general_cosine(M: int, sym: bool, dtype: DType, a: Any) -> Tensor:
    """A sum of cosines with alternating signs."""
    if not hasattr(a, "__iter__"):
        raise TypeError(f"a, the coefficients of general_cosine, must be a list or a tuple, not {type(a).__name__}")
    weights = [(-1) ** i * w for i, w in enumerate(a)]
    if not weights:
        raise ValueError("a, the coefficients of general_cosine, is empty: give at least one")
    if M == 1:
        return full((1,), 1.0, dtype=dtype)
    at = linspace(0.0, (M - 1) * (2 * math.pi / (M if not sym else M - 1)), M, dtype=dtype)
    turns = tensor([float(i) for i in range(len(weights))], dtype=dtype).unsqueeze(-1)
    return (tensor(weights, dtype=dtype).unsqueeze(-1) * (turns * at).cos()).sum(0)


def _cosines(name: str, doc: str, coefficients: Callable[..., list[float]]) -> None:
    def window(M: int, **settings: Any) -> Tensor:
        own = {k: settings.pop(k) for k in ("alpha",) if k in settings}
        return general_cosine(M, a=coefficients(**own), **settings)

    window.__name__ = window.__qualname__ = name
    window.__doc__ = doc
    WINDOWS[name] = window


_cosines("general_hamming", "The Hamming window with coefficients.", lambda alpha=0.54: [alpha, 1.0 - alpha])
_cosines("hamming", "Hamming's.", lambda: [0.54, 1.0 - 0.54])
_cosines("hann", "Hann's.", lambda: [0.5, 0.5])
_cosines("blackman", "Blackman's.", lambda: [0.42, 0.5, 0.08])
_cosines("nuttall", "Nuttall's.", lambda: [0.3635819, 0.4891775, 0.1365995, 0.0106411])


def _fading(name: str, terms: tuple[float, ...]) -> None:
    def window(
        window_length: int, periodic: bool = True, dtype: Any = None, requires_grad: bool = False, layout: Any = None,
        device: Any = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        if window_length == 1:
            return full((1,), 1.0, dtype=dtype or DEFAULT.dtype)
        turn = arange(window_length).to(dtype_of(dtype or DEFAULT.dtype)) * (2 * math.pi / (window_length - (not periodic)))
        total: Any = terms[0]
        for k, a in enumerate(terms[1:], 1):
            total = total + (turn * k).cos() * a
        return total

    window.__name__ = window.__qualname__ = name
    window.__doc__ = "A window function."
    function(window)


_fading("hann_window", (0.5, -0.5))
_fading("hamming_window", (0.54, -0.46))
_fading("blackman_window", (0.42, -0.5, 0.08))


@function
def bartlett_window(
    window_length: int, periodic: bool = True, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    if window_length == 1:
        return full((1,), 1.0, dtype=dtype or DEFAULT.dtype)
    at = arange(window_length).to(dtype_of(dtype or DEFAULT.dtype)) * (2.0 / (window_length - (not periodic)))
    return (1.0 - (at - 1.0).abs()).requires_grad_(requires_grad)


@function
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    if window_length == 1:
        return full((1,), 1.0, dtype=dtype or DEFAULT.dtype)
    at = arange(window_length).to(dtype_of(dtype or DEFAULT.dtype)) * (2.0 / (window_length - (not periodic))) - 1.0
    found = ((1.0 - at * at).clamp(min=0.0).sqrt() * beta).i0() / full((), beta, dtype=at.dtype).i0()
    return found.requires_grad_(requires_grad)
