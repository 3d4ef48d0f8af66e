"""Pooling over the last axes, one to three of them: (..., depth, height, width)."""

from __future__ import annotations

from itertools import product

from gt.ops.activation import INTEGERS, floats
from gt.ops.table import Kind, Rule, op
from gt.spec import Partial, Shape, Shard, Spec, float32, int64


def _length(d: int, k: int, s: int, p: int, e: int, ceil: bool) -> int:
    n = (d + 2 * p - e * (k - 1) - 1 + (s - 1 if ceil else 0)) // s + 1
    return n - 1 if ceil and (n - 1) * s >= d + p else n  # the last window begins inside the input or its left padding


def _out(name: str, shape: Shape, kernel, stride, padding, dilation, ceil) -> Shape:
    n = len(kernel)
    if len(shape) <= n:
        raise ValueError(f"{name} of {kernel}: expected at least {n + 1} axes, got {shape}")
    if min(kernel) < 1 or min(stride) < 1 or min(dilation) < 1:
        raise ValueError(f"{name}: expected windows, strides and dilations above 0, got {kernel}, {stride}, {dilation}")
    if any(p < 0 or p * 2 > k for p, k in zip(padding, kernel)):
        raise ValueError(f"{name}: expected a padding of 0 to half a window, got {padding} for windows of {kernel}")
    out = tuple(map(_length, shape[-n:], kernel, stride, padding, dilation, (ceil,) * n))
    if min(out) < 1:
        raise ValueError(f"a window of {kernel} does not fit into {shape[-n:]} with padding {padding}")
    return (*shape[:-n], *out)


def _outer(kind: Kind) -> list[Rule]:
    """The axes before the pooled ones may be sharded."""
    n = kind.ins[0].ndim - len(kind.settings["kernel"])
    return [((Shard(i),) * len(kind.ins), (Shard(i),) * len(kind.outs)) for i in range(n)]


def _outer_linear(kind: Kind) -> list[Rule]:
    """Whole numbers are rounded, which the terms of a sum must not be one by one."""
    linear = kind.ins[0].dtype.rank > 1
    return [*_outer(kind), ((Partial(),), (Partial(),))] if linear else _outer(kind)


def _max_shape(a: Spec, *, kernel, stride, padding, dilation, ceil) -> tuple[Spec, ...]:
    floats("max_pool", *(INTEGERS if len(kernel) > 1 else ()))(a)
    shape = _out("max_pool", a.shape, kernel, stride, padding, dilation, ceil)
    return Spec(shape, a.dtype), Spec(shape, int64)


def _places(d: int, n: int, k: int, s: int, p: int, e: int) -> list[list[int]]:
    """For each window along one axis, its elements."""
    return [[i for i in range(w * s - p, w * s - p + k * e, e) if 0 <= i < d] for w in range(n)]


def _max_pool(xp, a, *, kernel, stride, padding, dilation, ceil):
    n = len(kernel)
    shape = _out("max_pool", tuple(a.shape), kernel, stride, padding, dilation, ceil)
    room = _room(xp, a, shape)
    return (
        room
        if 0 in shape
        else _largest(
            xp, a, shape, [_places(*each) for each in zip(a.shape[-n:], shape[-n:], kernel, stride, padding, dilation)]
        )
    )


def _adaptive_max_pool(xp, a, *, kernel):
    n = len(kernel)
    room = _room(xp, a, shape := (*a.shape[:-n], *kernel))
    if 0 in shape:
        return room
    axes = [[list(range(s.start, s.stop)) for s in _spans(d, k)] for d, k in zip(a.shape[-n:], kernel)]
    return _largest(xp, a, shape, axes)


def _room(xp, a, shape: Shape):
    """Arrays of values and indices for the results: allocated first, so that sizes beyond all memory fail before their windows
    are listed."""
    return xp.zeros(shape, dtype=a.dtype), xp.zeros(shape, dtype=xp.dtype(int64.code))


def _largest(xp, a, shape: Shape, axes: list[list[list[int]]]):
    """The largest element of each window, the first of equal ones, and its index within the pooled axes; a nan wins. For each
    axis there is the list of its windows, each with its elements."""
    n = len(axes)
    sizes = tuple(a.shape[-n:])
    flat = xp.reshape(a, (*a.shape[:-n], Spec(sizes).numel))
    values, places = [], []
    for window in product(*axes):
        met = xp.asarray([_flat(at, sizes) for at in product(*window)])
        part = flat[..., met]
        best = xp.argmax(part, axis=-1, keepdims=True)
        values.append(xp.take_along_axis(part, best, -1))
        places.append(met[best])
    return (xp.reshape(xp.concat(values, axis=-1), shape), xp.reshape(xp.concat(places, axis=-1), shape))


def _flat(at, sizes: Shape) -> int:
    i = 0
    for j, d in zip(at, sizes):
        i = i * d + j
    return i


def _max_pull(gs, ys, ins, kernel, **_):
    """Each gradient goes to the index of its value."""
    g, places, shape, n = gs[0], ys[1], ins[0].shape, len(kernel)
    flat = (*shape[:-n], Spec(shape[-n:]).numel)
    g, places = g.reshape(*g.shape[:-n], -1), places.reshape(*g.shape[:-n], -1)
    return [g.op("gather_grad", places, shape=flat, axis=len(flat) - 1).reshape(shape)]


def _average(a: Spec, *, kernel, stride, padding, ceil, padded, divisor) -> Spec:
    floats("avg_pool", int64)(a)
    return Spec(_out("avg_pool", a.shape, kernel, stride, padding, (1,) * len(kernel), ceil), a.dtype)


def _shares(sizes: Shape, out: Shape, kernel, stride, padding, padded, divisor):
    """For each window: its index in the output, its slices of the input, and the divisor of its sum."""
    spans = []
    for d, n, k, s, p in zip(sizes, out, kernel, stride, padding):
        row = []
        for w in range(n):
            low, high = w * s - p, min(w * s - p + k, d + p)
            inner = slice(max(low, 0), min(high, d))
            row.append((w, inner, high - low if padded else inner.stop - inner.start))
        spans.append(row)
    for window in product(*spans):
        count = 1
        for _, _, c in window:
            count *= c
        yield tuple(w for w, _, _ in window), tuple(s for _, s, _ in window), divisor or count


def _avg_pool(xp, a, *, kernel, stride, padding, ceil, padded, divisor):
    n = len(kernel)
    shape = _out("avg_pool", tuple(a.shape), kernel, stride, padding, (1,) * n, ceil)
    y, axes = xp.zeros(shape, dtype=a.dtype), tuple(range(a.ndim - n, a.ndim))
    whole = a.dtype == xp.dtype(int64.code)
    if 0 in shape:
        return y
    for at, met, count in _shares(tuple(a.shape[-n:]), shape[-n:], kernel, stride, padding, padded, divisor):
        total = xp.sum(a[(..., *met)], axis=axes)
        y = xp.setitem(y, (..., *at), xp.sign(total) * (xp.abs(total) // count) if whole else total / count)
    return y


def _avg_pool_grad(xp, g, *, size, kernel, stride, padding, ceil, padded, divisor):
    n = len(kernel)
    y = xp.zeros((*g.shape[:-n], *size), dtype=g.dtype)
    for at, met, count in _shares(size, tuple(g.shape[-n:]), kernel, stride, padding, padded, divisor):
        y = xp.setitem(y, (..., *met), y[(..., *met)] + (g[(..., *at)] / count)[(..., *[None] * n)])
    return y


def _spans(d: int, n: int) -> list[slice]:
    return [slice(i * d // n, -(-(i + 1) * d // n)) for i in range(n)]


def _not_empty(size: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    """Each window of adaptive pooling takes an element of the image, also outside of an empty one."""
    if 0 in size and 0 not in kernel:
        raise ValueError(f"adaptive pooling of images of {size} to {kernel}: expected images that are not empty")


def _adaptive(a: Spec, *, kernel) -> Spec:
    floats("adaptive pooling")(a)
    if a.ndim <= len(kernel):
        raise ValueError(f"adaptive pooling to {kernel}: expected at least {len(kernel) + 1} axes, got {a.shape}")
    _not_empty(a.shape[-len(kernel) :], kernel)
    return Spec((*a.shape[: -len(kernel)], *kernel), a.dtype)


def _adaptive_max(a: Spec, *, kernel) -> tuple[Spec, Spec]:
    out = _adaptive(a, kernel=kernel)
    return out, Spec(out.shape, int64)


def _adaptive_avg_pool(xp, a, *, kernel):
    n = len(kernel)
    y, axes = xp.zeros((*a.shape[:-n], *kernel), dtype=a.dtype), tuple(range(a.ndim - n, a.ndim))
    if 0 in y.shape:
        return y
    spans = [list(enumerate(_spans(d, k))) for d, k in zip(a.shape[-n:], kernel)]
    for window in product(*spans):
        met = a[(..., *[s for _, s in window])]
        y = xp.setitem(y, (..., *[i for i, _ in window]), xp.mean(met, axis=axes))
    return y


def _adaptive_grad(xp, g, *, size, kernel):
    n = len(kernel)
    y = xp.zeros((*g.shape[:-n], *size), dtype=g.dtype)
    if 0 in g.shape:
        return y
    spans = [list(enumerate(_spans(d, k))) for d, k in zip(size, kernel)]
    for window in product(*spans):
        met, count = (..., *[s for _, s in window]), 1
        for _, s in window:
            count *= s.stop - s.start
        y = xp.setitem(y, met, y[met] + (g[(..., *[i for i, _ in window])] / count)[(..., *[None] * n)])
    return y


def _back(g: Spec, *, size, kernel, **_: object) -> Spec:
    return Spec((*g.shape[: -len(kernel)], *size), g.dtype)


def _adaptive_back(g: Spec, *, size, kernel) -> Spec:
    """The kernel iterates over `kernel` windows, so the gradient must have this shape."""
    if len(size) != len(kernel) or g.shape[g.ndim - len(kernel) :] != kernel:
        raise ValueError(
            f"the gradient of adaptive pooling of {size} to {kernel}: expected trailing dimensions {kernel}, got {g.shape}"
        )
    _not_empty(size, kernel)
    return _back(g, size=size, kernel=kernel)


X1, X2, X3 = Spec((2, 3, 7), float32), Spec((2, 3, 5, 6), float32), Spec((2, 3, 3, 4, 3), float32)
MAX1 = {"kernel": (3,), "stride": (2,), "padding": (1,), "dilation": (1,), "ceil": True}
MAX2 = {"kernel": (2, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "ceil": False}
AVG1 = {"kernel": (3,), "stride": (2,), "padding": (1,), "ceil": True, "padded": False, "divisor": 0}
MAX3 = {"kernel": (2, 3, 2), "stride": (1, 1, 2), "padding": (1, 0, 1), "dilation": (1, 1, 1), "ceil": False}
AVG3 = {"kernel": (2, 3, 2), "stride": (1, 1, 2), "padding": (1, 0, 1), "ceil": False, "padded": False, "divisor": 0}
AVG2 = {"kernel": (2, 3), "stride": (2, 2), "padding": (1, 0), "ceil": False, "padded": True, "divisor": 0}

op("max_pool", shape=_max_shape, shard=_outer, saved=1, keep="saved", grad=_max_pull,
   tries=(((X1,), MAX1), ((X2,), MAX2), ((X3,), MAX3)),
   kernel=_max_pool)  # fmt: skip
op("adaptive_max_pool", shape=_adaptive_max, shard=_outer, saved=1, keep="saved", grad=_max_pull,
   tries=(((X1,), {"kernel": (3,)}), ((X2,), {"kernel": (2, 4)}), ((X3,), {"kernel": (2, 2, 3)})),
   kernel=_adaptive_max_pool)  # fmt: skip
op("avg_pool", shape=_average, shard=_outer_linear,
   tries=(((X1,), AVG1), ((X2,), AVG2), ((X2,), {**AVG2, "divisor": 5, "ceil": True}), ((X3,), AVG3)),
   kernel=_avg_pool,
   grad=lambda gs, ys, ins, kernel, **s: [
       gs[0].op("avg_pool_grad", size=ins[0].shape[-len(kernel):], kernel=kernel, **s)])  # fmt: skip
op("avg_pool_grad", shape=_back, shard=_outer_linear,
   tries=(((Spec((2, 3, 4), float32),), {"size": (7,), **AVG1}), ((Spec((2, 3, 3, 2), float32),), {"size": (5, 6), **AVG2}),
          ((Spec((2, 3, 4, 2, 2), float32),), {"size": (3, 4, 3), **AVG3})),
   kernel=_avg_pool_grad,
   grad=lambda gs, ys, ins, size, **s: [gs[0].op("avg_pool", **s)])  # fmt: skip
op("adaptive_avg_pool", shape=_adaptive, shard=_outer_linear,
   tries=(((X1,), {"kernel": (3,)}), ((X2,), {"kernel": (2, 4)}), ((X3,), {"kernel": (2, 2, 3)})),
   kernel=_adaptive_avg_pool,
   grad=(lambda g, sa, kernel: g.op("adaptive_avg_pool_grad", size=sa.shape[-len(kernel):], kernel=kernel),))  # fmt: skip
op("adaptive_avg_pool_grad", shape=_adaptive_back, shard=_outer_linear,
   tries=(((Spec((2, 3, 3), float32),), {"size": (7,), "kernel": (3,)}),
          ((Spec((2, 3, 2, 2, 3), float32),), {"size": (3, 4, 3), "kernel": (2, 2, 3)})),
   kernel=_adaptive_grad,
   grad=(lambda g, kernel: g.op("adaptive_avg_pool", kernel=kernel),))  # fmt: skip
