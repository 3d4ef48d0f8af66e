"""Normalisations: softmax, layer_norm, rms_norm. The gradient of each is a row of its own, since it is one kernel; values for
the gradient (mean, 1 / deviation) are further outputs."""

from __future__ import annotations

from functools import partial

from gt.ops.activation import floats, paired
from gt.ops.rules import axis_of
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Partial, Placement, Shape, Shard, Spec, bfloat16, float32

X = Spec((4, 3), float32)
IMAGE = Spec((3, 4, 5), float32)
X16 = Spec((4, 3), bfloat16)


def along(kind: Kind) -> list[Rule]:
    """All axes except the normalised one may be sharded, in all tensors alike."""
    n, axis = len(kind.ins), kind.settings["axis"]
    return [((Shard(i),) * n, (Shard(i),) * len(kind.outs)) for i in range(kind.outs[0].ndim) if i != axis]


def _along(name: str):
    def rule(a: Spec, *rest: Spec, axis: int) -> Spec:
        axis_of(axis, a.ndim)
        return paired(a, *rest) if rest else floats(name)(a)

    return rule


def _softmax(xp, a, *, axis):
    if a.ndim == 0 or a.shape[axis] == 0:
        return 0.0 * a + 1.0
    e = xp.exp(a - xp.max(a, axis=axis, keepdims=True))
    return e / xp.sum(e, axis=axis, keepdims=True)


def log_softmax(xp, a, *, axis):
    if a.ndim == 0 or a.shape[axis] == 0:
        return 0.0 * a
    shifted = a - xp.max(a, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def _total(xp, a, axis):
    return xp.sum(a, axis=axis, keepdims=True) if a.ndim else a


def _softmax_terms(kind: Kind) -> list[Rule]:
    """The gradient is linear in its first operand: partial sums of it stay partial."""
    return [*along(kind), ((Partial(), REPLICATE), (Partial(),))]


op("softmax", autocast="high", shape=_along("softmax"), shard=along, tries=(((X,), {"axis": 1}), ((IMAGE,), {"axis": 1})),
   kernel=_softmax,
   lower=lambda a, *, axis: (lambda e: e / e.sum(axis=axis, keepdims=True))(
       (a - a.detach().amax(axis=axis, keepdims=True)).exp()),
   grad=(lambda g, y, axis: g.op("softmax_grad", y, axis=axis),))  # fmt: skip
op("softmax_grad", shape=_along("softmax"), shard=_softmax_terms, tries=(((X, X), {"axis": 1}),),
   kernel=lambda xp, g, y, *, axis: y * (g - _total(xp, g * y, axis)),
   lower=lambda g, y, *, axis: y * (g - (g * y).sum(axis=axis, keepdims=True)))  # fmt: skip
op("log_softmax", autocast="high", shape=_along("log_softmax"), shard=along,
   tries=(((X,), {"axis": 1}), ((IMAGE,), {"axis": 0})),
   kernel=log_softmax,
   lower=lambda a, *, axis: a - a.logsumexp(axis=axis, keepdims=True),
   grad=(lambda g, y, axis: g.op("log_softmax_grad", y, axis=axis),))  # fmt: skip
op("log_softmax_grad", shape=_along("log_softmax"), shard=_softmax_terms, tries=(((X, X), {"axis": 1}),),
   kernel=lambda xp, g, y, *, axis: g - xp.exp(y) * _total(xp, g, axis),
   lower=lambda g, y, *, axis: g - y.exp() * g.sum(axis=axis, keepdims=True))  # fmt: skip


def _last(name: str, kept: int):
    """Normalise over the last `ndim` axes; `parts` are a weight and a bias of their shape, a weight, or nothing."""

    def rule(a: Spec, eps: type, *parts: Spec, ndim: int) -> tuple[Spec, ...]:
        floats(name)(a)
        inner = a.shape[a.ndim - ndim :]
        if not 0 < ndim <= a.ndim:
            raise ValueError(f"{name} over {ndim} axes: expected a tensor of at least as many, got {a.shape}")
        for p in parts:
            if p.shape != inner:
                raise ValueError(f"{name} of {a.shape} over {ndim} axes: expected parameters of {inner}, got {p.shape}")
            if p.dtype is not a.dtype and not (a.dtype.size == 2 and p.dtype is float32):
                raise TypeError(f"{name} of {a.dtype.name}: expected parameters of that dtype, got {p.dtype.name}")
        return (a, *[Spec(a.shape[: a.ndim - ndim] + (1,) * ndim, wide(a))] * kept)

    return rule


def same_spec(what: str, want: Spec, *found: Spec) -> None:
    """Raise if the saved results of a forward pass have other specs: libraries read them without a check."""
    if any(s is not want for s in found):
        raise ValueError(f"{what}: expected {want}, got {', '.join(map(str, found))}")


def wide(a: Spec):
    """The dtype of sums: 32 bits for 16-bit floats."""
    return float32 if a.dtype.size == 2 else a.dtype


def _outer(kind: Kind) -> list[Rule]:
    """The axes before the normalised ones may be sharded; weight and bias are replicated."""
    rest = (REPLICATE,) * (len(kind.ins) - 1)
    return [((Shard(i), *rest), (Shard(i),) * len(kind.outs))
            for i in range(kind.outs[0].ndim - kind.settings["ndim"])]  # fmt: skip


def _outer_grad(kind: Kind) -> list[Rule]:
    """If axes before the normalised ones are sharded, each worker has a partial sum of the gradients of weight and bias."""
    weights: tuple[Placement, ...] = (Partial(),) * (len(kind.outs) - 1)
    whole = kind.ins[0].ndim
    rules: list[Rule] = []
    for i in range(whole - kind.settings["ndim"]):
        cut = tuple(Shard(i) if s.ndim == whole else REPLICATE for s in kind.ins)
        rules.append((cut, (Shard(i), *weights)))
    return rules


def _weights(a: Spec, ndim: int) -> Shape:
    return a.shape[a.ndim - ndim :]


def _layer_norm(xp, a, eps, *parts, ndim):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    mean = xp.mean(a, axis=axes, keepdims=True)
    centred = a - mean
    rstd = 1.0 / xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True) + eps)
    y = centred * rstd
    if parts:
        y = y * parts[0]
    return (y + parts[1] if len(parts) > 1 else y), mean, rstd


def _lower_layer_norm(a, eps, *parts, ndim):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    wide_a = a.to(wide(a))
    mean = wide_a.mean(axis=axes, keepdims=True)
    centred = wide_a - mean
    rstd = ((centred * centred).mean(axis=axes, keepdims=True) + eps).rsqrt()
    y = centred * rstd
    y = y * parts[0] if parts else y
    return (y + parts[1] if len(parts) > 1 else y).to(a.dtype), mean, rstd


def _layer_norm_grad(xp, g, a, mean, rstd, *weight, ndim, bias):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    outer = tuple(range(a.ndim - ndim))
    hat = (a - mean) * rstd
    wg = g * weight[0] if weight else g
    slope = wg - xp.mean(wg, axis=axes, keepdims=True) - hat * xp.mean(wg * hat, axis=axes, keepdims=True)
    grads = [slope * rstd]
    if weight:
        grads.append(xp.sum(g * hat, axis=outer) if outer else g * hat)
    if bias:
        grads.append(xp.sum(g, axis=outer) if outer else g)
    return tuple(grads) if len(grads) > 1 else grads[0]


def _lower_layer_norm_grad(g, a, mean, rstd, *weight, ndim, bias):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    outer = tuple(range(a.ndim - ndim))
    centred = a - a.mean(axis=axes, keepdims=True)
    # computed from the input: the saved mean and deviation have no gradient path to it
    eps = (rstd * rstd).reciprocal() - (centred * centred).mean(axis=axes, keepdims=True)
    rstd = ((centred * centred).mean(axis=axes, keepdims=True) + eps.detach()).rsqrt()
    hat = centred * rstd
    wg = g * weight[0] if weight else g
    slope = wg - wg.mean(axis=axes, keepdims=True) - hat * (wg * hat).mean(axis=axes, keepdims=True)
    grads = [slope * rstd]
    if weight:
        grads.append((g * hat).sum_to(weight[0].shape))
    if bias:
        grads.append(g.sum(axis=outer) if outer else g)
    return tuple(grads) if len(grads) > 1 else grads[0]


def _layer_norm_pull(gs, ys, ins, ndim):
    a, _, *parts = ins
    found = gs[0].op("layer_norm_grad", a, ys[1], ys[2], *parts[:1], ndim=ndim, bias=len(parts) > 1)
    found = found if isinstance(found, tuple) else (found,)
    return [found[0], None, *found[1:]]


def _grads(g: Spec, a: Spec, *rest: Spec, ndim: int, bias: bool = False, saved: int = 2) -> tuple[Spec, ...]:
    paired(g, a)
    weight = rest[saved:]
    _, *kept = _last("the gradient of a norm", saved)(a, float, *weight, ndim=ndim)
    same_spec("mean and deviation", kept[0], *rest[:saved])
    return (a, *weight, *([weight[0]] if bias else []))


ROWS, FEATURES = Spec((4, 1), float32), Spec((3,), float32)
SAVED = Values(ROWS, 0.5, 2.0)

op("layer_norm", of_sum="add_layer_norm", autocast="high", shape=_last("layer_norm", 2), shard=_outer, saved=2,
   keep="inputs saved", grad=_layer_norm_pull,
   tries=(((X, 1e-5, FEATURES, FEATURES), {"ndim": 1}), ((X, 1e-5, FEATURES), {"ndim": 1}),
          ((IMAGE, 1e-5), {"ndim": 2})),
   kernel=_layer_norm, lower=_lower_layer_norm)  # fmt: skip
op("layer_norm_grad", plus="add_layer_norm_grad", shape=_grads, shard=_outer_grad,
   tries=(((X, X, ROWS, SAVED, FEATURES), {"ndim": 1, "bias": True}), ((X, X, ROWS, SAVED), {"ndim": 1, "bias": False}),
          ((X, X, ROWS, SAVED, FEATURES), {"ndim": 1, "bias": False}),
          ((X16, X16, ROWS, SAVED, Spec((3,), bfloat16)), {"ndim": 1, "bias": True})),
   kernel=_layer_norm_grad, lower=_lower_layer_norm_grad)  # fmt: skip


def _not_narrow(a: Spec) -> None:
    """A sum of 16 bits is rounded before its norm is computed, which a fused kernel does not do."""
    if a.dtype.size == 2:
        raise TypeError(f"add_layer_norm: expected floats of 32 or 64 bits, got {a.dtype.name}")


def _of_sum(a: Spec, b: Spec, eps: type, *parts: Spec, ndim: int) -> tuple[Spec, ...]:
    paired(a, b)
    _not_narrow(a)
    return (a, *_last("add_layer_norm", 2)(a, eps, *parts, ndim=ndim))


def _add_layer_norm(xp, a, b, eps, *parts, ndim):
    total = a + b
    return total, *_layer_norm(xp, total, eps, *parts, ndim=ndim)


def _lower_add_layer_norm(a, b, eps, *parts, ndim):
    total = a + b
    return total, *_lower_layer_norm(total, eps, *parts, ndim=ndim)


def _outer_sum(kind: Kind) -> list[Rule]:
    rest = (REPLICATE,) * (len(kind.ins) - 2)
    return [((Shard(i), Shard(i), *rest), (Shard(i),) * len(kind.outs))
            for i in range(kind.outs[0].ndim - kind.settings["ndim"])]  # fmt: skip


def _grads_of_sum(other: Spec, g: Spec, *rest: Spec, ndim: int, bias: bool) -> tuple[Spec, ...]:
    paired(other, g)
    _not_narrow(g)
    return _grads(g, *rest, ndim=ndim, bias=bias)


def _added(of_norm, other, *operands, **settings):
    found = of_norm(*operands, **settings)
    first, *rest = found if isinstance(found, tuple) else (found,)
    return (other + first, *rest) if rest else other + first


def _add_layer_norm_grad(xp, other, g, a, mean, rstd, *weight, ndim, bias):
    return _added(partial(_layer_norm_grad, xp), other, g, a, mean, rstd, *weight, ndim=ndim, bias=bias)


def _lower_add_layer_norm_grad(other, g, a, mean, rstd, *weight, ndim, bias):
    return _added(_lower_layer_norm_grad, other, g, a, mean, rstd, *weight, ndim=ndim, bias=bias)


def _add_layer_norm_pull(gs, ys, ins, ndim):
    _, _, _, *parts = ins
    found = gs[0].op("add_layer_norm_grad", gs[1], ys[0], *ys[2:], *parts[:1], ndim=ndim, bias=len(parts) > 1)
    found = found if isinstance(found, tuple) else (found,)
    return [found[0], found[0], None, *found[1:]]


op("add_layer_norm", autocast="high", shape=_of_sum, shard=_outer_sum, saved=2, keep="rest outputs",
   grad=_add_layer_norm_pull,
   tries=(((X, X, 1e-5, FEATURES, FEATURES), {"ndim": 1}), ((X, X, 1e-5, FEATURES), {"ndim": 1}),
          ((IMAGE, IMAGE, 1e-5), {"ndim": 2})),
   kernel=_add_layer_norm, lower=_lower_add_layer_norm)  # fmt: skip
op("add_layer_norm_grad", shape=_grads_of_sum, shard=_outer_grad,
   tries=(((X, X, X, ROWS, SAVED, FEATURES), {"ndim": 1, "bias": True}),
          ((X, X, X, ROWS, SAVED), {"ndim": 1, "bias": False})),
   kernel=_add_layer_norm_grad, lower=_lower_add_layer_norm_grad)  # fmt: skip


def _rms_norm(xp, a, eps, *weight, ndim):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    rstd = 1.0 / xp.sqrt(xp.mean(a * a, axis=axes, keepdims=True) + eps)
    return (a * rstd * weight[0] if weight else a * rstd), rstd


def _lower_rms_norm(a, eps, *weight, ndim):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    x = a.to(wide(a))
    rstd = ((x * x).mean(axis=axes, keepdims=True) + eps).rsqrt()
    return (x * rstd * weight[0] if weight else x * rstd).to(a.dtype), rstd


def _rms_norm_grad(xp, g, a, rstd, *weight, ndim):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    hat = a * rstd
    wg = g * weight[0] if weight else g
    slope = (wg - hat * xp.mean(wg * hat, axis=axes, keepdims=True)) * rstd
    if not weight:
        return slope
    outer = tuple(range(a.ndim - ndim))
    return slope, (xp.sum(g * hat, axis=outer) if outer else g * hat)


def _lower_rms_norm_grad(g, a, rstd, *weight, ndim):
    axes = tuple(range(a.ndim - ndim, a.ndim))
    eps = (rstd * rstd).reciprocal() - (a * a).mean(axis=axes, keepdims=True)
    rstd = ((a * a).mean(axis=axes, keepdims=True) + eps.detach()).rsqrt()
    hat = a * rstd
    wg = g * weight[0] if weight else g
    slope = (wg - hat * (wg * hat).mean(axis=axes, keepdims=True)) * rstd
    return (slope, (g * hat).sum_to(weight[0].shape)) if weight else slope


def _rms_norm_pull(gs, ys, ins, ndim):
    a, _, *weight = ins
    found = gs[0].op("rms_norm_grad", a, ys[1], *weight, ndim=ndim)
    return [found[0], None, found[1]] if weight else [found, None]


op("rms_norm", autocast="high", shape=_last("rms_norm", 1), shard=_outer, saved=1, keep="inputs saved", grad=_rms_norm_pull,
   tries=(((X, 1e-5, FEATURES), {"ndim": 1}), ((IMAGE, 1e-5), {"ndim": 2})),
   kernel=_rms_norm, lower=_lower_rms_norm)  # fmt: skip
op("rms_norm_grad", shape=partial(_grads, saved=1), shard=_outer_grad,
   tries=(((X, X, SAVED, FEATURES), {"ndim": 1}), ((X, X, SAVED), {"ndim": 1}),
          ((X16, X16, SAVED, Spec((3,), bfloat16)), {"ndim": 1})),
   kernel=_rms_norm_grad, lower=_lower_rms_norm_grad)  # fmt: skip
