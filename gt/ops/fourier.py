"""Fourier transforms over some axes, without scaling: complex to complex in both directions, real to the non-redundant half,
and from that half to real. The other axes may be sharded; partial sums pass through."""

from __future__ import annotations

from gt.ops.movement import _moved_rules
from gt.ops.rules import axis_of
from gt.ops.table import op
from gt.spec import Spec, complex64, complex128, float32, float64


def _whole(a: Spec, *, axes, forward) -> Spec:
    if a.dtype not in (complex64, complex128):
        raise TypeError(f"a Fourier transform: expected complex64 or complex128, got {a.dtype.name}")
    return _sized(a, axes)


def _sized(a: Spec, axes) -> Spec:
    for axis in axes:
        if a.shape[axis_of(axis, a.ndim)] < 1:
            raise ValueError(f"a Fourier transform: expected at least one element, got axis {axis} of {a.shape}")
    return a


def _half(a: Spec, *, axes) -> Spec:
    if a.dtype not in (float32, float64):
        raise TypeError(f"a Fourier transform of real numbers: expected float32 or float64, got {a.dtype.name}")
    _sized(a, axes)
    last = axes[-1]
    return Spec((*a.shape[:last], a.shape[last] // 2 + 1, *a.shape[last + 1 :]), a.dtype.to_complex())


def _real(a: Spec, *, axes, n) -> Spec:
    _whole(a, axes=axes, forward=False)
    last = axes[-1]
    if n < 1 or n // 2 + 1 != a.shape[last]:
        raise ValueError(
            f"the half transform of {n} real numbers: expected {n // 2 + 1} elements, got axis {last} of {a.shape}"
        )
    return Spec((*a.shape[:last], n, *a.shape[last + 1 :]), a.dtype.to_real())


def _half_grad(g, sa, axes):
    """The gradient of the redundant half is zero."""
    last = axes[-1]
    widths = [(0, 0)] * g.ndim
    widths[last] = (0, sa.shape[last] - g.shape[last])
    return g.op("pad", 0.0, widths=tuple(widths)).op("fft_complex", axes=axes, forward=False).real


def _real_grad(g, sa, axes):
    """Elements that occur twice in the whole transform count twice."""
    last, half = axes[-1], g.op("fft_half", axes=axes)
    twice = g.shape[last] - half.shape[last]
    if twice < 1:
        return half
    parts = [half.narrow(last, 0, 1), half.narrow(last, 1, twice) * 2.0]
    rest = half.shape[last] - 1 - twice
    if rest:
        parts.append(half.narrow(last, 1 + twice, rest))
    return parts[0].op("cat", *parts[1:], axis=last)


C, R = Spec((3, 4, 5), complex64), Spec((3, 4, 5), float32)

op("fft_complex", complex="own", shape=_whole, shard=_moved_rules,
   tries=(((C,), {"axes": (1,), "forward": True}), ((C,), {"axes": (0, 2), "forward": False})),
   kernel=lambda xp, a, *, axes, forward: xp.fft_complex(a, axes, forward),
   grad=(lambda g, axes, forward: g.op("fft_complex", axes=axes, forward=not forward),))  # fmt: skip
op("fft_half", complex="own", shape=_half, shard=_moved_rules, tries=(((R,), {"axes": (1,)}), ((R,), {"axes": (0, 2)})),
   kernel=lambda xp, a, *, axes: xp.fft_half(a, axes),
   grad=(_half_grad,))  # fmt: skip
op("fft_real", complex="own", shape=_real, shard=_moved_rules,
   tries=(((C,), {"axes": (1,), "n": 6}), ((C,), {"axes": (0, 2), "n": 9})),
   kernel=lambda xp, a, *, axes, n: xp.fft_real(a, axes, n),
   grad=(_real_grad,))  # fmt: skip
