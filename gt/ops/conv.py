"""Convolutions over any number of axes, (batch, channels, ...). Convolution, its transpose and the gradient of its weight are
three contractions of one sum of products: the gradients of each are the other two. Statics have an item for each spatial
axis."""

from __future__ import annotations

from itertools import product

from gt.ops.activation import INTEGERS, floats
from gt.ops.estimate import CONV_PRODUCT
from gt.ops.table import Kind, Rule, op
from gt.spec import REPLICATE, DType, Partial, Placement, Shape, Shard, Spec, float32, int64


def _check(name: str, a: Spec, w: Spec, bias: tuple[Spec, ...], channels: int, *whole: DType) -> None:
    floats(name, *whole)(a)
    if any(s.dtype is not a.dtype for s in (w, *bias)):
        names = ", ".join(s.dtype.name for s in (a, w, *bias))
        raise TypeError(f"{name}: expected one dtype, got {names}")
    if a.ndim < 3 or w.ndim != a.ndim:
        raise ValueError(f"{name}: expected (batch, channels, ...) and a weight of as many axes, got {a.shape}, {w.shape}")
    for b in bias:
        if b.shape != (channels,):
            raise ValueError(f"{name} of weight {w.shape}: expected a bias of {(channels,)}, got {b.shape}")


def _conv(a: Spec, w: Spec, *bias: Spec, stride, padding, dilation, groups) -> Spec:
    _check("conv", a, w, bias, w.shape[0], *INTEGERS)
    if a.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError(f"cannot convolve {a.shape} by {w.shape} in {groups} groups: expected {w.shape[1] * groups} channels")
    out = tuple((d + 2 * p - e * (k - 1) - 1) // s + 1
                for d, k, s, p, e in zip(a.shape[2:], w.shape[2:], stride, padding, dilation))  # fmt: skip
    if min(out) < 1 and a.numel:
        raise ValueError(f"a kernel of {w.shape[2:]} does not fit into {a.shape[2:]} with padding {padding}")
    return Spec((a.shape[0], w.shape[0], *out), a.dtype)


def _check_windows(count: Shape, kernel: Shape, size: Shape, stride, padding, dilation) -> None:
    """The windows of a kernel fit into an image of `size`, and no further one would, but for an output padding."""
    if not len(count) == len(kernel) == len(size) == len(stride) == len(padding) == len(dilation):
        raise ValueError(f"a convolution over {len(count)} axes: expected as many sizes and settings, got {size}, {stride}")
    for n, k, d, s, p, e in zip(count, kernel, size, stride, padding, dilation):
        if not 0 <= d + 2 * p - (n - 1) * s - e * (k - 1) - 1 < max(s, e):
            raise ValueError(f"{count} windows of {kernel} do not fit into {size} with strides {stride} and padding {padding}")


def _transpose(a: Spec, w: Spec, *bias: Spec, size, stride, padding, dilation, groups) -> Spec:
    _check("conv_transpose", a, w, bias, w.shape[1] * groups, int64)
    if a.shape[1] != w.shape[0] or w.shape[0] % groups:
        raise ValueError(f"cannot convolve {a.shape} by {w.shape} transposed: expected {w.shape[0]} channels")
    made = Spec((a.shape[0], w.shape[1] * groups, *size), a.dtype)
    if a.numel and w.numel:
        _check_windows(a.shape[2:], w.shape[2:], size, stride, padding, dilation)
    return made


def _weight(g: Spec, a: Spec, *, size, stride, padding, dilation, groups) -> Spec:
    _check("the gradient of a convolution's weight", a, g, (), 0)
    if g.shape[0] != a.shape[0] or not len(size) == len(stride) == len(padding) == len(dilation) == a.ndim - 2:
        raise ValueError(f"the gradient of a kernel of {size}: expected one batch and as many axes, got {g.shape}, {a.shape}")
    if a.shape[1] % groups or g.shape[1] % groups:
        raise ValueError(f"cannot divide the channels of {a.shape} and {g.shape} into {groups} groups")
    if g.numel and a.numel:
        _check_windows(g.shape[2:], size, a.shape[2:], stride, padding, dilation)
    return Spec((g.shape[1], a.shape[1] // groups, *size), a.dtype)


def _windows(size: Shape, out: Shape, stride, dilation):
    """For each position in the kernel, the slices of the padded input that it is multiplied with."""
    for at in product(*map(range, size)):
        yield at, tuple(slice(i * e, i * e + (n - 1) * s + 1, s) for i, n, s, e in zip(at, out, stride, dilation))


def _padded(shape: Shape, padding) -> Shape:
    return (*shape[:2], *(d + 2 * p for d, p in zip(shape[2:], padding)))


def _inside(padding, shape: Shape) -> tuple:
    return (slice(None), slice(None), *(slice(p, p + d) for p, d in zip(padding, shape)))


def _bias(xp, y, bias):
    return y + xp.reshape(bias[0], (1, bias[0].shape[0]) + (1,) * (y.ndim - 2)) if bias else y


def _run(xp, a, w, *bias, stride, padding, dilation, groups):
    n, size = a.shape[0], tuple(w.shape[2:])
    out = tuple((d + 2 * p - e * (k - 1) - 1) // s + 1
                for d, k, s, p, e in zip(a.shape[2:], size, stride, padding, dilation))  # fmt: skip
    x = xp.setitem(xp.zeros(_padded(tuple(a.shape), padding), dtype=a.dtype), _inside(padding, tuple(a.shape[2:])), a)
    x = xp.reshape(x, (n, groups, x.shape[1] // groups, *x.shape[2:]))
    w = xp.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))  # (groups, out channels, in channels, ...)
    y = xp.zeros((n, groups, w.shape[1], _count(out)), dtype=a.dtype)
    for at, window in _windows(size, out, stride, dilation):
        met = xp.reshape(x[(slice(None),) * 3 + window], (n, groups, w.shape[2], _count(out)))
        y = y + xp.matmul(w[(slice(None),) * 3 + at], met)
    return _bias(xp, xp.reshape(y, (n, groups * w.shape[1], *out)), bias)


def _run_transpose(xp, a, w, *bias, size, stride, padding, dilation, groups):
    n, out = a.shape[0], tuple(a.shape[2:])
    inner = w.shape[1]
    y = xp.zeros(_padded((n, groups * inner, *size), padding), dtype=a.dtype)
    y = xp.reshape(y, (n, groups, inner, *y.shape[2:]))
    x = xp.reshape(a, (n, groups, a.shape[1] // groups, _count(out)))
    w = xp.reshape(w, (groups, w.shape[0] // groups, *w.shape[1:]))
    for at, window in _windows(tuple(w.shape[3:]), out, stride, dilation):
        spread = xp.matmul(xp.swapaxes(w[(slice(None),) * 3 + at], 1, 2), x)
        index = (slice(None),) * 3 + window
        y = xp.setitem(y, index, y[index] + xp.reshape(spread, (n, groups, inner, *out)))
    y = xp.reshape(y, (n, groups * inner, *y.shape[3:]))
    return _bias(xp, y[_inside(padding, size)], bias)


def _run_weight(xp, g, a, *, size, stride, padding, dilation, groups):
    n, out = a.shape[0], tuple(g.shape[2:])
    x = xp.setitem(xp.zeros(_padded(tuple(a.shape), padding), dtype=a.dtype), _inside(padding, tuple(a.shape[2:])), a)
    x = xp.reshape(x, (n, groups, x.shape[1] // groups, *x.shape[2:]))
    inner = x.shape[2]
    g = xp.reshape(g, (n, groups, g.shape[1] // groups, _count(out)))
    parts = []
    for _, window in _windows(size, out, stride, dilation):
        met = xp.reshape(x[(slice(None),) * 3 + window], (n, groups, inner, _count(out)))
        parts.append(xp.sum(xp.matmul(g, xp.swapaxes(met, 2, 3)), axis=(0,)))
    return xp.reshape(xp.stack(parts, axis=3), (groups * g.shape[2], inner, *size))


def _count(shape: Shape) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


# Each gradient names both operands, as PyTorch saves both in any case.
def _conv_input_grad(g, a, b, stride, padding, dilation, groups):
    return g.op("conv_transpose", b, size=a.shape[2:], stride=stride, padding=padding, dilation=dilation, groups=groups)


def _conv_weight_grad(g, a, b, stride, padding, dilation, groups):
    return g.op("conv_weight_grad", a, size=b.shape[2:], stride=stride, padding=padding, dilation=dilation, groups=groups)


def _transpose_input_grad(g, a, b, stride, padding, dilation, groups):
    found = g.op("conv", b, stride=stride, padding=padding, dilation=dilation, groups=groups)
    if found.shape != a.shape:  # an output padding as wide as the stride makes room for more windows
        found = found.op("slice", *[0] * a.ndim, take=tuple((d, 1) for d in a.shape))
    return found


def _transpose_weight_grad(g, a, b, stride, padding, dilation, groups):
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return a.op("conv_weight_grad", g, size=b.shape[2:], **settings)


def _bias_grad(g):
    return g.sum(axis=(0, *range(2, g.ndim)))


def _rules(out: int, inner: int):
    """Shard samples, and, with one group, channels; `out` and `inner` are their axes in the weight. A bias must not be added on
    each holder of a partial sum."""

    def rules(kind: Kind) -> list[Rule]:
        bias = len(kind.ins) > 2
        found: list[Rule] = [((Shard(0), REPLICATE, *[REPLICATE] * bias), (Shard(0),))]
        if kind.settings["groups"] == 1:
            found.append(((REPLICATE, Shard(out), *[Shard(0)] * bias), (Shard(1),)))
            if not bias:
                found.append(((Shard(1), Shard(inner)), (Partial(),)))
        return found + ([] if bias else _terms())

    return rules


def _terms() -> list[Rule]:
    term: Placement = Partial()
    return [((term, REPLICATE), (term,)), ((REPLICATE, term), (term,))]


def _weight_rules(kind: Kind) -> list[Rule]:
    rules: list[Rule] = [((Shard(0), Shard(0)), (Partial(),)), *_terms()]
    if kind.settings["groups"] == 1:
        rules += [((Shard(1), REPLICATE), (Shard(0),)), ((REPLICATE, Shard(1)), (Shard(1),))]
    return rules


def _seconds(which: int):
    """`compute_seconds` of a convolution (0), its transpose (1) or its weight's gradient (2): each element of the larger side
    is multiplied with the weights of one channel."""

    def seconds(kind: Kind) -> float:
        weight = kind.outs[0] if which == 2 else kind.ins[1]
        return CONV_PRODUCT * (kind.ins[0] if which else kind.outs[0]).numel * weight.numel / max(1, weight.shape[0])

    return seconds


def _parts(kind: Kind) -> int:
    """`sequential_steps`: the library lays out images, weights and result for its kernel, and computes."""
    return 4


X1, W1 = Spec((3, 2, 7), float32), Spec((4, 2, 3), float32)
X2, W2, B2 = Spec((3, 4, 5, 6), float32), Spec((4, 2, 3, 2), float32), Spec((4,), float32)
PLAIN = {"stride": (1,), "padding": (0,), "dilation": (1,), "groups": 1}
BUSY = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
G2 = Spec((3, 4, 3, 8), float32)

op("conv", images="last", compute_seconds=_seconds(0), sequential_steps=_parts, autocast="low", shape=_conv, shard=_rules(0, 1),
   grad=(_conv_input_grad, _conv_weight_grad, _bias_grad),
   tries=(((X1, W1), PLAIN), ((X2, W2, B2), BUSY), ((X1, W1, B2), {**PLAIN, "padding": (1,)})),
   kernel=_run)  # fmt: skip
op("conv_transpose", images="last", compute_seconds=_seconds(1), sequential_steps=_parts, autocast="low", shape=_transpose,
   shard=_rules(1, 0), grad=(_transpose_input_grad, _transpose_weight_grad, _bias_grad),
   tries=(((Spec((3, 4, 5), float32), W1), {"size": (7,), **PLAIN}), ((G2, W2, B2), {"size": (5, 6), **BUSY}),
          ((Spec((3, 4, 3), float32), W1, Spec((2,), float32)), {"size": (8,), **PLAIN, "stride": (2,)}),
          ((Spec((3, 4, 3), float32), W1), {"size": (8,), **PLAIN, "dilation": (2,)})),
   kernel=_run_transpose)  # fmt: skip
op("conv_weight_grad", images="last", compute_seconds=_seconds(2), sequential_steps=_parts, shape=_weight, shard=_weight_rules,
   keep="inputs",
   tries=(((Spec((3, 4, 5), float32), X1), {"size": (3,), **PLAIN}), ((G2, X2), {"size": (3, 2), **BUSY})),
   grad=lambda gs, ys, ins, size, **s: [ins[1].op("conv", gs[0], **s),
                                        ins[0].op("conv_transpose", gs[0], size=ins[1].shape[2:], **s)],
   kernel=_run_weight)  # fmt: skip
