"""Fourier transforms, as `gt.fft`: arguments are normalised, scaled by `norm`, and passed to three rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import arange
from gt.client.functions.registry import FUNCTIONS, both
from gt.client.saved import note_saved
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import dtype_of

FFT: dict[str, Callable] = {}


def _scale(norm: str | None, sizes: list[int], forward: bool) -> float:
    count = math.prod(sizes)
    match norm or "backward":
        case "ortho":
            return 1.0 / math.sqrt(count)
        case "backward" | "forward" as end:
            return 1.0 / count if forward == (end == "forward") else 1.0
    raise ArgumentError(f"no norm {norm!r}: known are backward, ortho, forward")


def _axes(x: Tensor, s: Any, dim: Any) -> tuple[list[int], list[int | None]]:
    """The axes to transform and their requested sizes."""
    if isinstance(s, int):
        s = (s,)
    if isinstance(dim, int):
        dim = (dim,)
    if s is not None and dim is not None and len(s) != len(dim):
        raise ArgumentError(f"expected s and dim of one length, got {tuple(s)} and {tuple(dim)}")
    if s is not None and len(s) > x.ndim:
        raise ArgumentError(f"got shape {tuple(s)} for a tensor of {x.ndim} dimensions")
    if dim is None:
        dim = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    axes = [axis_of(d, x.ndim) for d in dim]
    if len(set(axes)) < len(axes):
        raise ArgumentError(f"expected different axes, got dim={tuple(dim)}")
    sizes: list[int | None] = [None if n == -1 else n for n in (s or [-1] * len(axes))]
    for n in sizes:
        if n is not None and n < 1:
            raise ArgumentError(f"a transform: expected at least one element, got {n}")
    return axes, sizes


def _resized(x: Tensor, axis: int, n: int | None) -> Tensor:
    """Cropped, or padded with zeros, to this many elements."""
    have = x.shape[axis]
    if n is None or n == have:
        return x
    if n < have:
        return x.narrow(axis, 0, n)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, n - have)
    return apply(TABLE["pad"], (x, 0.0), (tuple(widths),))


def _floats(x: Tensor) -> Tensor:
    return x if x.dtype.rank >= 2 else x.to(DEFAULT.dtype)


def _complex(x: Tensor) -> Tensor:
    x = _floats(x)
    return x if x.dtype.is_complex else x.to(x.dtype.to_complex())


def _whole(x: Tensor, s: Any, dim: Any, norm: str | None, forward: bool) -> Tensor:
    axes, sizes = _axes(x, s, dim)
    x = _complex(x)
    for axis, n in zip(axes, sizes):
        x = _resized(x, axis, n)
    if not axes:
        return x
    scale = _scale(norm, [x.shape[a] for a in axes], forward)
    y = apply(TABLE["fft_complex"], (x,), (tuple(sorted(axes)), forward))
    return y if scale == 1.0 else y * scale


def _to_half(x: Tensor, s: Any, dim: Any, norm: str | None, forward: bool) -> Tensor:
    """The non-redundant half of the transform of real numbers, along the last axis named; forward, or (`ihfft`) its
    conjugate."""
    if x.dtype.is_complex:
        raise ArgumentError(f"this transform: expected real numbers, got {x.dtype.name}: use fft or ifft")
    axes, sizes = _axes(x, s, dim)
    if not axes:
        raise ArgumentError(f"dim={dim!r}: a transform needs at least one axis")
    x = _floats(x)
    for axis, n in zip(axes, sizes):
        x = _resized(x, axis, n)
    scale = _scale(norm, [x.shape[a] for a in axes], forward)
    if forward:
        y = note_saved(apply(TABLE["fft_half"], (x,), ((*sorted(axes[:-1]), axes[-1]),)), x)
    else:
        y = note_saved(apply(TABLE["fft_half"], (x,), ((axes[-1],),)), x).conj()
        if axes[:-1]:
            y = apply(TABLE["fft_complex"], (y,), (tuple(sorted(axes[:-1])), False))
    return y if scale == 1.0 else y * scale


def _to_real(x: Tensor, s: Any, dim: Any, norm: str | None, forward: bool) -> Tensor:
    """Real numbers from half of their transform; forward (`hfft`), from its conjugate."""
    axes, sizes = _axes(x, s, dim)
    if not axes:
        raise ArgumentError(f"dim={dim!r}: a transform needs at least one axis")
    x = _complex(x)
    last = axes[-1]
    n = sizes[-1] if sizes[-1] is not None else 2 * (x.shape[last] - 1)
    if n < 1:
        raise ArgumentError(f"a transform: expected at least one element, got {n}")
    for axis, size in zip(axes[:-1], sizes[:-1]):
        x = _resized(x, axis, size)
    x = _resized(x, last, n // 2 + 1)
    scale = _scale(norm, [*(x.shape[a] for a in axes[:-1]), n], forward)
    if forward:
        if axes[:-1]:
            x = apply(TABLE["fft_complex"], (x,), (tuple(sorted(axes[:-1])), True))
        y = apply(TABLE["fft_real"], (x.conj(),), ((last,), n))
    else:
        y = apply(TABLE["fft_real"], (x,), ((*sorted(axes[:-1]), last), n))
    return y if scale == 1.0 else y * scale


def _family(name: str, transform: Callable, forward: bool, doc: str) -> None:
    """The transforms of one axis, of two and of several."""

    def one(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
        y = transform(input, None if n is None else (n,), (dim,), norm, forward)
        saved = transform is _whole and input.dtype.rank == 2 and y.shape == input.shape
        return note_saved(y, input) if saved else y

    def two(input: Tensor, s: Any = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
        return transform(input, s, dim, norm, forward)

    def several(input: Tensor, s: Any = None, dim: Any = None, norm: str | None = None) -> Tensor:
        return transform(input, s, dim, norm, forward)

    for suffix, f in (("", one), ("2", two), ("n", several)):
        f.__name__ = f.__qualname__ = name + suffix
        f.__doc__ = doc
        FFT[name + suffix] = f


_family("fft", _whole, True, "The discrete Fourier transform.")
_family("ifft", _whole, False, "The inverse of the discrete Fourier transform.")
_family("rfft", _to_half, True, "The transform of real numbers, without its redundant half.")
_family("irfft", _to_real, False, "The inverse of `rfft`.")
_family("hfft", _to_real, True, "The real transform of a Hermitian-symmetric signal.")
_family("ihfft", _to_half, False, "The inverse of `hfft`.")


def fft_function(f: Callable) -> Callable:
    FFT[f.__name__] = f
    return f


@fft_function
def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """The frequency of each element of a transform."""
    result_dtype = dtype_of(dtype or DEFAULT.dtype)
    at = arange(n)
    found = (at - (at > (n - 1) // 2).to(at.dtype) * n).to(result_dtype) * (1.0 / (n * d))
    return found.requires_grad_() if requires_grad else found


@fft_function
def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """The frequency of each element of a transform of real numbers."""
    found = arange(n // 2 + 1).to(dtype_of(dtype or DEFAULT.dtype)) * (1.0 / (n * d))
    return found.requires_grad_() if requires_grad else found


def _shifted(x: Tensor, dim: Any, shift: Callable[[int], int]) -> Tensor:
    axes = [axis_of(d, x.ndim) for d in (range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim)]
    return x.roll(tuple(shift(x.shape[a]) for a in axes), tuple(axes)) if axes else x


@fft_function
def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """Shift frequency 0 to the centre."""
    return _shifted(input, dim, lambda n: n // 2)


@fft_function
def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """The inverse of `fftshift`."""
    return _shifted(input, dim, lambda n: (n + 1) // 2)


def _padded_window(window: Tensor | None, length: int, n_fft: int, like: Tensor) -> Tensor:
    """The window centred in a frame and padded with zeros."""
    if window is None:
        window = FUNCTIONS["ones"](length, dtype=like.dtype.to_real())
    if window.ndim != 1 or window.shape[0] != length or not 0 < length <= n_fft:
        raise ArgumentError(f"expected a window of win_length={length} elements, at most n_fft={n_fft}, got {window.shape}")
    before = (n_fft - length) // 2
    return window if length == n_fft else apply(TABLE["pad"], (window, 0.0), (((before, n_fft - length - before),),))


def _places(frames: int, hop: int, n_fft: int) -> Tensor:
    return arange(frames).unsqueeze(-1) * hop + arange(n_fft)  # (frames, n_fft)


@both
def stft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, pad_mode: str = "reflect", normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None, align_to_window: bool | None = None,
) -> Tensor:  # fmt: skip
    """Fourier transforms of windows along a signal: (..., frequencies, frames)."""
    hop = n_fft // 4 if hop_length is None else hop_length
    complex_ = input.is_complex() or window is not None and window.is_complex()
    if return_complex is None and not complex_:
        raise RuntimeError("stft: expected return_complex=True, or False for real and imaginary parts along a last axis")
    if input.ndim not in (1, 2) or hop <= 0:
        raise ArgumentError(f"stft: expected one or two axes and a positive hop, got {input.shape} and {hop}")
    x = input if input.ndim == 2 else input.unsqueeze(0)
    if center:
        x = FUNCTIONS["pad"](x.unsqueeze(1), (n_fft // 2, n_fft // 2), pad_mode).squeeze(1)
    if not 0 < n_fft <= x.shape[-1]:
        raise ArgumentError(f"stft: expected n_fft up to the length {x.shape[-1]} of the signal, got {n_fft}")
    shape = _padded_window(window, n_fft if win_length is None else win_length, n_fft, input)
    frames = (x.shape[-1] - n_fft) // hop + 1
    x = x.index_select(1, _places(frames, hop, n_fft).reshape(-1)).reshape(x.shape[0], frames, n_fft) * shape
    half = not complex_ if onesided is None else onesided
    found = FFT["rfft" if half else "fft"](x, norm="ortho" if normalized else None).mT
    found = found.squeeze(0) if input.ndim == 1 else found
    return found if return_complex or return_complex is None else FUNCTIONS["view_as_real"](found)


@both
def istft(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None, window: Tensor | None = None,
    center: bool = True, normalized: bool = False, onesided: bool | None = None, length: int | None = None,
    return_complex: bool = False,
) -> Tensor:  # fmt: skip
    """The signal of an `stft`, by overlap-add."""
    if not input.is_complex() or input.ndim not in (2, 3):
        raise RuntimeError(f"istft: expected a complex tensor of two or three axes, got {input.dtype.name} {input.shape}")
    hop = n_fft // 4 if hop_length is None else hop_length
    size = n_fft if win_length is None else win_length
    x = (input if input.ndim == 3 else input.unsqueeze(0)).mT  # (batch, frames, frequencies)
    half = x.shape[-1] != n_fft if onesided is None else onesided
    if x.shape[-1] != (n_fft // 2 + 1 if half else n_fft) or not 0 < hop <= size:
        raise ArgumentError(f"istft of {input.shape} does not fit n_fft={n_fft}, hop_length={hop}, win_length={size}")
    shape = _padded_window(window, size, n_fft, input)
    norm = "ortho" if normalized else None
    if return_complex:
        y = FFT["ifft"](x, norm=norm)
    else:
        y = FFT["irfft"](x if half else x.narrow(-1, 0, n_fft // 2 + 1), n_fft, norm=norm)
    frames = x.shape[1]
    whole, places = n_fft + hop * (frames - 1), _places(frames, hop, n_fft).reshape(-1)
    y = (y * shape).reshape(y.shape[0], -1)
    signal = y.new_zeros((y.shape[0], whole)).index_add(1, places, y)
    squares = (shape * shape.conj()).real.expand(frames, n_fft).reshape(-1)
    weight = squares.new_zeros((whole,)).index_add(0, places, squares)
    start = n_fft // 2 if center else 0
    end = start + length if length is not None else whole - (n_fft // 2 if center else 0)
    kept = min(end, whole) - start
    found = signal.narrow(1, start, kept) / weight.narrow(0, start, kept)
    if end > whole:
        found = apply(TABLE["pad"], (found, 0.0), (((0, 0), (0, end - whole)),))
    return found if input.ndim == 3 else found.squeeze(0)
