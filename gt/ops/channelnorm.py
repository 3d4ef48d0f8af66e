"""Normalisation over channels, (batch, channels, ...): group_norm and batch_norm, with or without a weight and a bias for each
channel."""

from __future__ import annotations

from gt.ops.activation import floats, paired
from gt.ops.norm import same_spec, wide
from gt.ops.reduce import count
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Partial, Placement, Shard, Spec, float32

IMAGES = Spec((3, 4, 2, 2), float32)
C = Spec((4,), float32)
SPREAD = Values(C, 0.5, 2.0)


def _check(name: str, a: Spec, parts: tuple[Spec, ...]) -> None:
    floats(name)(a)
    if a.ndim < 2:
        raise ValueError(f"{name}: expected (batch, channels, ...), got {a.shape}")
    for p in parts:
        if p.shape != a.shape[1:2]:
            raise ValueError(f"{name} of {a.shape}: expected {a.shape[1:2]} for its channels, got {p.shape}")
        if p.dtype is not a.dtype and not (a.dtype.size == 2 and p.dtype is float32):
            raise TypeError(f"{name} of {a.dtype.name}: expected parameters of that dtype, got {p.dtype.name}")


def _spread(xp, part, ndim):
    """A value for each channel, shaped to broadcast against (batch, channels, ...)."""
    return xp.reshape(part, (1, part.shape[0]) + (1,) * (ndim - 2))


def _affine(xp, y, parts):
    if parts:
        y = y * _spread(xp, parts[0], y.ndim)
    return y + _spread(xp, parts[1], y.ndim) if len(parts) > 1 else y


def _group_shape(a: Spec, eps: type, *parts: Spec, groups: int) -> tuple[Spec, ...]:
    _check("group_norm", a, parts)
    if a.shape[1] % groups:
        raise ValueError(f"cannot divide the {a.shape[1]} channels of {a.shape} into {groups} groups")
    one = Spec((a.shape[0], groups), wide(a))
    return a, one, one


def _grouped(xp, a, groups):
    return xp.reshape(a, (a.shape[0], groups, count(a.shape[1:], range(a.ndim - 1)) // groups))


def _group_norm(xp, a, eps, *parts, groups):
    x = _grouped(xp, a, groups)
    mean = xp.mean(x, axis=(2,), keepdims=True)
    x = x - mean
    rstd = 1.0 / xp.sqrt(xp.mean(x * x, axis=(2,), keepdims=True) + eps)
    y = _affine(xp, xp.reshape(x * rstd, a.shape), parts)
    return y, xp.reshape(mean, (a.shape[0], groups)), xp.reshape(rstd, (a.shape[0], groups))


def _lower_affine(y, parts):
    shape = (1, -1) + (1,) * (y.ndim - 2)
    y = y * parts[0].reshape(shape) if parts else y
    return y + parts[1].reshape(shape) if len(parts) > 1 else y


def _lower_group_norm(a, eps, *parts, groups):
    x = a.to(wide(a)).reshape(a.shape[0], groups, -1)
    mean = x.mean(axis=2, keepdims=True)
    x = x - mean
    rstd = ((x * x).mean(axis=2, keepdims=True) + eps).rsqrt()
    return _lower_affine((x * rstd).reshape(a.shape), parts).to(a.dtype), mean.squeeze(2), rstd.squeeze(2)


def _lower_batch_norm_train(a, eps, *parts):
    axes, x = _others(a), a.to(wide(a))
    mean = x.mean(axis=axes, keepdims=True)
    x = x - mean
    var = (x * x).mean(axis=axes, keepdims=True)
    rstd = (var + eps).rsqrt()
    n = count(a.shape, axes)
    flat = (t.reshape(-1) for t in (mean, rstd, var * (n / (n - 1))))
    return _lower_affine(x * rstd, parts).to(a.dtype), *flat


def _lower_batch_norm(a, mean, var, eps, *parts):
    shape = (1, -1) + (1,) * (a.ndim - 2)
    y = (a - mean.reshape(shape)) * (var.reshape(shape) + eps).rsqrt()
    return _lower_affine(y, parts).to(a.dtype)


def _others(a) -> tuple[int, ...]:
    """All axes except that of the channels."""
    return (0, *range(2, a.ndim))


def _group_norm_grad(xp, g, a, mean, rstd, *weight, groups, bias):
    mean, rstd = (xp.reshape(s, (a.shape[0], groups, 1)) for s in (mean, rstd))
    hat = (_grouped(xp, a, groups) - mean) * rstd
    wg = _grouped(xp, g * _spread(xp, weight[0], a.ndim) if weight else g, groups)
    slope = wg - xp.mean(wg, axis=(2,), keepdims=True) - hat * xp.mean(wg * hat, axis=(2,), keepdims=True)
    grads = [xp.reshape(slope * rstd, a.shape)]
    if weight:
        grads.append(xp.sum(g * xp.reshape(hat, a.shape), axis=_others(a)))
    if bias:
        grads.append(xp.sum(g, axis=_others(a)))
    return tuple(grads) if len(grads) > 1 else grads[0]


def _lower_group_norm_grad(g, a, mean, rstd, *weight, groups, bias):
    x = a.reshape(a.shape[0], groups, -1)
    x = x - x.mean(axis=2, keepdims=True)
    var = (x * x).mean(axis=2, keepdims=True)
    rstd = rstd.unsqueeze(-1)
    rstd = (var + ((rstd * rstd).reciprocal() - var).detach()).rsqrt()
    hat = x * rstd
    w = [v.reshape((1, -1) + (1,) * (a.ndim - 2)) for v in weight]
    wg = (g * w[0] if w else g).reshape(a.shape[0], groups, -1)
    slope = wg - wg.mean(axis=2, keepdims=True) - hat * (wg * hat).mean(axis=2, keepdims=True)
    grads = [(slope * rstd).reshape(a.shape)]
    if weight:
        grads.append((g * hat.reshape(a.shape)).sum(axis=_others(a)))
    if bias:
        grads.append(g.sum(axis=_others(a)))
    return tuple(grads) if len(grads) > 1 else grads[0]


def _group_grads(g: Spec, a: Spec, mean: Spec, rstd: Spec, *weight: Spec, bias: bool, groups: int) -> tuple[Spec, ...]:
    same_spec("mean and deviation of groups", _group_shape(a, float, groups=groups)[1], mean, rstd)
    return _grads(g, a, *weight, bias=bias)


def _batch_grads(g: Spec, a: Spec, mean: Spec, rstd: Spec, *weight: Spec, bias: bool) -> tuple[Spec, ...]:
    same_spec("mean and deviation of channels", Spec(a.shape[1:2], wide(a)), mean, rstd)
    return _grads(g, a, *weight, bias=bias)


def _grads(g: Spec, a: Spec, *weight: Spec, bias: bool) -> tuple[Spec, ...]:
    paired(g, a)
    _check("the gradient of a norm", a, weight)
    return (a, *weight, *([weight[0]] if bias else []))


def _pull(name: str, gs, ys, ins, **statics):
    a, _, *parts = ins
    found = gs[0].op(name, a, ys[1], ys[2], *parts[:1], bias=len(parts) > 1, **statics)
    found = found if isinstance(found, tuple) else (found,)
    return [found[0], None, *found[1:]]


def _by_batch(kind: Kind) -> list[Rule]:
    rest = (REPLICATE,) * (len(kind.ins) - 1)
    return [((Shard(0), *rest), (Shard(0),) * len(kind.outs))]


def _by_batch_grad(kind: Kind) -> list[Rule]:
    """Each shard of the samples gives a partial sum of the gradients of weight and bias."""
    ins: list[Placement] = [*[Shard(0)] * 4, *[REPLICATE] * (len(kind.ins) - 4)]
    return [(tuple(ins), (Shard(0), *[Partial()] * (len(kind.outs) - 1)))]


PAIRS, DEVIATIONS = Spec((3, 2), float32), Values(Spec((3, 2), float32), 0.5, 2.0)

op("group_norm", images="first", unchecked="d", autocast="high", shape=_group_shape, shard=_by_batch, saved=2,
   keep="inputs saved", grad=lambda gs, ys, ins, groups: _pull("group_norm_grad", gs, ys, ins, groups=groups),
   tries=(((IMAGES, 1e-5, C, C), {"groups": 2}), ((IMAGES, 1e-5), {"groups": 4})),
   kernel=_group_norm, lower=_lower_group_norm)  # fmt: skip
op("group_norm_grad", images="first", shape=_group_grads, shard=_by_batch_grad,
   tries=(((IMAGES, IMAGES, PAIRS, DEVIATIONS, C), {"groups": 2, "bias": True}),
          ((IMAGES, IMAGES, PAIRS, DEVIATIONS), {"groups": 2, "bias": False})),
   kernel=_group_norm_grad, lower=_lower_group_norm_grad)  # fmt: skip


def _trained(a: Spec, eps: type, *parts: Spec) -> tuple[Spec, ...]:
    _check("batch_norm", a, parts)
    if count(a.shape, _others(a)) == 1:
        raise ValueError(f"batch_norm in training: expected more than one value for each channel, got {a.shape}")
    one = Spec(a.shape[1:2], wide(a))
    return a, one, one, one


def _batch_norm_train(xp, a, eps, *parts):
    axes = _others(a)
    mean = xp.mean(a, axis=axes, keepdims=True)
    x = a - mean
    var = xp.mean(x * x, axis=axes, keepdims=True)
    rstd = 1.0 / xp.sqrt(var + eps)
    n = count(tuple(a.shape), axes)
    flat = (xp.reshape(mean, (-1,)), xp.reshape(rstd, (-1,)), xp.reshape(var, (-1,)) * (n / (n - 1)))
    return _affine(xp, x * rstd, parts), *flat


def _batch_norm_grad(xp, g, a, mean, rstd, *weight, bias):
    axes, n = _others(a), a.ndim
    rstd = _spread(xp, rstd, n)
    hat = (a - _spread(xp, mean, n)) * rstd
    wg = g * _spread(xp, weight[0], n) if weight else g
    slope = wg - xp.mean(wg, axis=axes, keepdims=True) - hat * xp.mean(wg * hat, axis=axes, keepdims=True)
    grads = [slope * rstd] + ([xp.sum(g * hat, axis=axes)] if weight else []) + ([xp.sum(g, axis=axes)] if bias else [])
    return tuple(grads) if len(grads) > 1 else grads[0]


def _lower_batch_norm_grad(g, a, mean, rstd, *weight, bias):
    axes, shape = _others(a), (1, -1) + (1,) * (a.ndim - 2)
    x = a - a.mean(axis=axes, keepdims=True)
    var = (x * x).mean(axis=axes, keepdims=True)
    rstd = rstd.reshape(shape)
    rstd = (var + ((rstd * rstd).reciprocal() - var).detach()).rsqrt()
    hat = x * rstd
    wg = g * weight[0].reshape(shape) if weight else g
    slope = wg - wg.mean(axis=axes, keepdims=True) - hat * (wg * hat).mean(axis=axes, keepdims=True)
    grads = [slope * rstd] + ([(g * hat).sum(axis=axes)] if weight else []) + ([g.sum(axis=axes)] if bias else [])
    return tuple(grads) if len(grads) > 1 else grads[0]


def _by_channel(kind: Kind) -> list[Rule]:
    """Channels are independent."""
    ins = tuple(REPLICATE if isinstance(s, type) else Shard(1 if s.ndim > 1 else 0) for s in kind.ins)
    return [(ins, tuple(Shard(1 if s.ndim > 1 else 0) for s in kind.outs))]


def _by_channel_or_sample(kind: Kind) -> list[Rule]:
    ins = tuple(Shard(0) if isinstance(s, Spec) and s.ndim > 1 else REPLICATE for s in kind.ins)
    return [*_by_channel(kind), (ins, (Shard(0),))]


def _known(a: Spec, mean: Spec, var: Spec, eps: type, *parts: Spec) -> Spec:
    _check("batch_norm", a, (mean, var, *parts))
    return a


def _batch_norm(xp, a, mean, var, eps, *parts):
    return _affine(xp, (a - _spread(xp, mean, a.ndim)) * (1.0 / xp.sqrt(_spread(xp, var, a.ndim) + eps)), parts)


def _batch_norm_pull(gs, ys, ins):
    g, (a, mean, var, eps, *parts) = gs[0], ins
    shape = (1, -1) + (1,) * (a.ndim - 2)
    rstd = (var.reshape(shape) + eps).rsqrt()
    wg = g * parts[0].reshape(shape) if parts else g
    x = a - mean.reshape(shape)
    slope = wg * rstd
    found = [slope, -slope.sum(axis=_others(a)), (slope * x * rstd * rstd).sum(axis=_others(a)) * -0.5, None]
    if parts:
        found.append((g * x * rstd).sum(axis=_others(a)))
    return found + ([g.sum(axis=_others(a))] if len(parts) > 1 else [])


op("batch_norm_train", unchecked="d", shape=_trained, shard=_by_channel, saved=3, keep="inputs saved",
   grad=lambda gs, ys, ins: _pull("batch_norm_grad", gs, ys, ins),
   tries=(((IMAGES, 1e-5, C, C), {}), ((Spec((3, 4), float32), 1e-5), {})),
   kernel=_batch_norm_train, lower=_lower_batch_norm_train)  # fmt: skip
op("batch_norm_grad", shape=_batch_grads, shard=_by_channel,
   tries=(((IMAGES, IMAGES, C, SPREAD, C), {"bias": True}), ((IMAGES, IMAGES, C, SPREAD), {"bias": False})),
   kernel=_batch_norm_grad, lower=_lower_batch_norm_grad)  # fmt: skip
op("batch_norm", unchecked="f", shape=_known, shard=_by_channel_or_sample, keep="inputs", grad=_batch_norm_pull,
   tries=(((IMAGES, C, SPREAD, 1e-5, C, C), {}), ((IMAGES, C, SPREAD, 1e-5), {})),
   kernel=_batch_norm, lower=_lower_batch_norm)  # fmt: skip
