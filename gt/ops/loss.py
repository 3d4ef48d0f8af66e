"""Cross-entropy of scores against class numbers. It gives a sum, and the sum of the weights, the divisor of a mean: so samples
may be on several workers, each with a partial sum of both."""

from __future__ import annotations

from gt.ops.norm import log_softmax
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Partial, Shard, Spec, float32, int64


def _axis(ndim: int) -> int:
    """Classes are the second axis, or the only one."""
    return 1 if ndim > 1 else 0


def _check(a: Spec, target: Spec, weight: tuple[Spec, ...]) -> None:
    if a.dtype.rank != 2:
        raise TypeError(f"cross_entropy: expected floating-point scores, got {a.dtype.name}")
    if target.dtype is not int64:
        raise TypeError(f"cross_entropy: expected int64 class numbers or probabilities, got {target.dtype.name}")
    if not a.shape or a.shape[: _axis(a.ndim)] + a.shape[_axis(a.ndim) + 1 :] != target.shape:
        raise ValueError(
            f"cross_entropy: expected scores (n, classes, ...) and targets (n, ...), got {a.shape}, {target.shape}"
        )
    for w in weight:
        if w.shape != (a.shape[_axis(a.ndim)],) or w.dtype is not a.dtype:
            raise ValueError(f"cross_entropy of {a}: expected a weight for each class, got {w}")


def _shape(a: Spec, target: Spec, smoothing: type, *weight: Spec, ignore: int, reduce: bool) -> tuple[Spec, ...]:
    _check(a, target, weight)
    one = Spec(() if reduce else target.shape, a.dtype)
    return one, one, a


def _weights(xp, target, weight, ignore, like):
    """The weight of each sample, and targets that are valid indices."""
    counted = target != ignore
    safe = xp.where(counted, target, 0 * target)
    kept = xp.where(counted, 1.0, 0.0)
    w = weight[0][safe] * kept if weight else kept + 0.0 * like
    return w, safe, kept


def _cross_entropy(xp, a, target, smoothing, *weight, ignore, reduce):
    axis = _axis(a.ndim)
    logp = log_softmax(xp, a, axis=axis)
    first = xp.reshape(xp.take_along_axis(logp, 0 * xp.expand_dims(target, axis), axis), target.shape)
    w, safe, kept = _weights(xp, target, weight, ignore, 0.0 * xp.where(xp.isfinite(first), first, 0.0))
    picked = xp.reshape(xp.take_along_axis(logp, xp.expand_dims(safe, axis), axis), target.shape)
    loss = xp.where(w == 0, 0.0, -picked * w)
    if smoothing:
        shared = logp * _classes(xp, weight[0], a.ndim) if weight else logp
        loss = loss * (1.0 - smoothing) - xp.sum(shared, axis=(axis,)) * kept * (smoothing / a.shape[axis])
    if reduce:
        every = tuple(range(target.ndim))
        return xp.sum(loss, axis=every), xp.sum(w, axis=every), logp
    return loss, w, logp


def _lower(a, target, smoothing, *weight, ignore, reduce):
    axis = _axis(a.ndim)
    logp = a.log_softmax(axis=axis)
    counted = target != ignore
    safe = counted.pick(target, 0)
    count = counted.to(a.dtype) if not weight else counted.to(a.dtype) * weight[0].op("index", safe, axes=(0,))
    loss = -(logp.op("gather", safe.unsqueeze(axis), axis=axis).squeeze(axis) * count)
    loss = (count == 0).pick(0.0, loss)
    if smoothing:
        shared = logp * weight[0].reshape((1, -1) + (1,) * (a.ndim - 2) if axis else (-1,)) if weight else logp
        loss = loss * (1.0 - smoothing) - shared.sum(axis=axis) * counted.to(a.dtype) * (smoothing / a.shape[axis])
    return (loss.sum(), count.sum(), logp) if reduce else (loss, count, logp)


def _classes(xp, weight, ndim):
    return xp.reshape(weight, (1, -1) + (1,) * (ndim - 2)) if ndim > 1 else weight


def _cross_entropy_grad(xp, g, logp, target, smoothing, *weight, ignore):
    axis = _axis(logp.ndim)
    counted = xp.expand_dims(target != ignore, axis)
    classes = xp.reshape(xp.arange(0, logp.shape[axis]), (-1,) + (1,) * (logp.ndim - 1 - axis))
    hit = (classes == xp.expand_dims(target, axis)) & counted
    wanted = xp.where(hit, 1.0 - smoothing, 0.0) + xp.where(counted, smoothing / logp.shape[axis], 0.0)
    if weight:
        wanted = wanted * _classes(xp, weight[0], logp.ndim)
    found = (xp.exp(logp) * xp.sum(wanted, axis=(axis,), keepdims=True) - wanted) * (xp.expand_dims(g, axis) if g.ndim else g)
    return xp.where(counted, found, xp.zeros_like(found))  # if all are ignored, the gradient of a mean is nan


def _lower_grad(g, logp, target, smoothing, *weight, ignore):
    axis = _axis(logp.ndim)
    counted = (target != ignore).unsqueeze(axis)
    safe = counted.pick(target.unsqueeze(axis), 0)
    hit = logp.new_zeros(logp.shape).op("scatter", safe, 1.0, axis=axis) * counted
    wanted = hit * (1.0 - smoothing) + counted.to(logp.dtype) * (smoothing / logp.shape[axis])
    if weight:
        wanted = wanted * weight[0].reshape((1, -1) + (1,) * (logp.ndim - 2) if axis else (-1,))
    found = (logp.exp() * wanted.sum(axis=axis, keepdims=True) - wanted) * (g.unsqueeze(axis) if g.ndim else g)
    return counted.pick(found, 0.0)


def _pull(gs, ys, ins, ignore, reduce):
    found = gs[0].op("cross_entropy_grad", ys[2], *ins[1:], ignore=ignore) if gs[0] is not None else None
    if gs[2] is not None:  # the gradient of the gradient passes through the logarithms
        through = gs[2].op("log_softmax_grad", ys[2], axis=_axis(ys[2].ndim))
        found = through if found is None else found + through
    return [found]


def _grad_shape(g: Spec, logp: Spec, target: Spec, smoothing: type, *weight: Spec, ignore: int) -> Spec:
    _check(logp, target, weight)
    if g.dtype is not logp.dtype or g.shape not in ((), target.shape):
        raise ValueError(f"the gradient of cross_entropy of {logp}: expected a number or {target.shape} of its dtype, got {g}")
    return logp


def _rules(kind: Kind) -> list[Rule]:
    """Samples are independent; sums over them are partial."""
    if kind.ins[0].ndim < 2:
        return []
    out = Partial() if kind.settings["reduce"] else Shard(0)
    return [((Shard(0), Shard(0), *[REPLICATE] * (len(kind.ins) - 2)), (out, out, Shard(0)))]


def _grad_rules(kind: Kind) -> list[Rule]:
    g, logp = kind.ins[0], kind.ins[1]
    if logp.ndim < 2:
        return []
    first = Shard(0) if g.ndim else REPLICATE
    return [((first, Shard(0), Shard(0), *[REPLICATE] * (len(kind.ins) - 3)), (Shard(0),))]


X, T = Spec((4, 3), float32), Values(Spec((4,), int64), 0, 3)
W = Values(Spec((3,), float32), 0.5, 2.0)
IMAGE, PIXELS = Spec((2, 3, 2), float32), Values(Spec((2, 2), int64), 0, 3)
LOGP = Values(X, -3.0, 0.0)

op("cross_entropy", autocast="high", shape=_shape, shard=_rules, saved=2, keep="rest saved", grad=_pull,
   tries=(((X, T, 0.0), {"ignore": -100, "reduce": True}), ((X, T, 0.1, W), {"ignore": 1, "reduce": False}),
          ((IMAGE, PIXELS, 0.1), {"ignore": 2, "reduce": True}),
          ((Spec((3,), float32), Values(Spec((), int64), 0, 3), 0.0), {"ignore": -100, "reduce": True})),
   kernel=_cross_entropy, lower=_lower)  # fmt: skip
op("cross_entropy_grad", shape=_grad_shape, shard=_grad_rules,
   tries=(((Spec((), float32), LOGP, T, 0.0), {"ignore": -100}),
          ((Spec((4,), float32), LOGP, T, 0.1, W), {"ignore": 1})),
   kernel=_cross_entropy_grad, lower=_lower_grad)  # fmt: skip
