"""Reductions."""

from __future__ import annotations

from gt.errors import NoElements
from gt.ops.rules import gradient_of, real_part, reduced, without
from gt.ops.table import Kind, Rule, op
from gt.spec import REPLICATE, Partial, Shard, Spec, bool_, float32, int64, uint8


def reduction_rules(*kinds: str, through: bool = True):
    """Shard a kept axis, or, for a reduction with partial results, a reduced one; partial sums may pass through."""

    def rules(kind: Kind) -> list[Rule]:
        axes, keep = kind.settings["axis"], kind.settings["keepdims"]
        numbers, results = (REPLICATE,) * (len(kind.ins) - 1), len(kind.outs)
        terms = [r for r in kinds if r == "sum" or not kind.ins[0].dtype.is_complex or kind.outs[0].dtype is bool_]
        found: list[Rule] = []
        for at in range(len(kind.ins[0].shape)):
            if at not in axes:
                out = at if keep else at - sum(a < at for a in axes)
                found.append(((Shard(at), *numbers), (Shard(out),) * results))
            elif terms:
                found.append(((Shard(at),), (Partial(terms[0]),)))
        return found + [((Partial(r),), (Partial(r),)) for r in terms if through]

    return rules


def _sum(a: Spec, *, axis, keepdims) -> Spec:
    return Spec(without(a.shape, axis, keepdims), a.dtype if a.dtype.rank >= 2 else int64)


def _mean(a: Spec, *, axis, keepdims) -> Spec:
    if a.dtype.rank < 2:
        raise TypeError(f"mean: expected a floating-point tensor, got {a.dtype.name}: cast with .float() first")
    return reduced(a, axis=axis, keepdims=keepdims)


def _nonempty(a: Spec, *, axis, keepdims) -> Spec:
    if any(a.shape[i] == 0 for i in axis):
        raise NoElements(f"cannot take the largest or smallest of no elements: shape {a.shape}, axes {axis}")
    return reduced(a, axis=axis, keepdims=keepdims)


def _spread(g, a, axis, keepdims):
    """The gradient of a reduction, broadcast to the input's shape."""
    return g.op("spread", shape=a.shape, axis=axis, keepdims=keepdims)


def _spread_rules(kind: Kind) -> list[Rule]:
    axes, keep = kind.settings["axis"], kind.settings["keepdims"]
    numbers = (REPLICATE,) * (len(kind.ins) - 1)
    found: list[Rule] = [((Partial(), *numbers), (Partial(),))]
    for at in range(len(kind.outs[0].shape)):
        source = at if keep else at - sum(a < at for a in axes)
        found.append(((REPLICATE if at in axes else Shard(source), *numbers), (Shard(at),)))
    return found


def count(shape, axis) -> int:
    n = 1
    for i in axis:
        n *= shape[i]
    return n


def _extreme_grad(g, y, a, axis, keepdims):
    """Equal largest elements share the gradient."""
    hit = (a == _spread(y, a, axis, keepdims)).to(g.dtype)
    return hit / hit.sum(axis=axis, keepdims=True) * _spread(g, a, axis, keepdims)


X = Spec((3, 4), float32)
TRIES = (((X,), {"axis": (0,), "keepdims": False}), ((X,), {"axis": (0, 1), "keepdims": True}))

op("sum", complex="analytic", autocast="high", shape=_sum, shard=reduction_rules("sum"), tries=TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.sum(a, axis=axis, keepdims=keepdims),
   grad=(lambda g, sa, axis, keepdims: _spread(g, sa, axis, keepdims),))  # fmt: skip


def _mean_rules(kind: Kind) -> list[Rule]:
    """A mean of no elements has no partial sums."""
    some = kind.ins[0].numel > 0
    return reduction_rules(*(("sum",) if some else ()))(kind)


def _mean_piece(kind: Kind, rule: Rule, first: int, size: int) -> dict:
    """The partial sum of a piece: its sum, divided by the number of elements of the whole."""
    if rule[1] != (Partial(),):
        return {}
    return {"row": "scaled_sum", "scale": 1.0 / count(kind.ins[0].shape, kind.settings["axis"])}


op("scaled_sum", complex="analytic", shape=lambda a, *, axis, keepdims, scale: reduced(a, axis=axis, keepdims=keepdims),
   shard=reduction_rules("sum"), tries=tuple((ins, {**s, "scale": 0.25}) for ins, s in TRIES),
   kernel=lambda xp, a, *, axis, keepdims, scale: xp.sum(a, axis=axis, keepdims=keepdims) * scale)  # fmt: skip
op("mean", complex="analytic", shape=_mean, shard=_mean_rules, cut=_mean_piece, tries=TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.mean(a, axis=axis, keepdims=keepdims),
   lower=lambda a, *, axis, keepdims: a.sum(axis=axis, keepdims=keepdims) * (1.0 / count(a.shape, axis)),
   grad=(lambda g, sa, axis, keepdims: g.op("spread", 1.0 / max(count(sa.shape, axis), 1), shape=sa.shape, axis=axis,
                                            keepdims=keepdims),))  # fmt: skip
# The gradient of a sum: each element's part of the gradient, times a number if one is given.
op("spread", complex="analytic", shape=gradient_of("spread", lambda a, *scale, **settings: reduced(a, **settings)),
   shard=_spread_rules, view=True,
   tries=(((Spec((4,), float32),), {"shape": (3, 4), "axis": (0,), "keepdims": False}),
          ((Spec((1, 4), float32), 0.5), {"shape": (3, 4), "axis": (0,), "keepdims": True})),
   kernel=lambda xp, g, *scale, shape, axis, keepdims: xp.broadcast_to(
       xp.reshape(g * scale[0] if scale else g, without(shape, axis, True)), shape),
   grad=lambda gs, ys, ins, shape, axis, keepdims: [
       gs[0].sum(axis=axis, keepdims=keepdims) * (ins[1] if len(ins) > 1 else 1.0)])  # fmt: skip
op("amax", shape=_nonempty, shard=reduction_rules("max"), tries=TRIES, grad=(_extreme_grad,),
   kernel=lambda xp, a, *, axis, keepdims: xp.max(a, axis=axis, keepdims=keepdims))  # fmt: skip
op("amin", shape=_nonempty, shard=reduction_rules("min"), tries=TRIES, grad=(_extreme_grad,),
   kernel=lambda xp, a, *, axis, keepdims: xp.min(a, axis=axis, keepdims=keepdims))  # fmt: skip


def _truth(a: Spec, *, axis, keepdims) -> Spec:
    return Spec(without(a.shape, axis, keepdims), uint8 if a.dtype is uint8 else bool_)


def _floating(name: str):
    def rule(a: Spec, *numbers: type, axis, keepdims, **_: object) -> Spec:
        if a.dtype.rank < 2:
            raise TypeError(f"{name}: expected a floating-point tensor, got {a.dtype.name}: cast with .float() first")
        return real_part(reduced(a, axis=axis, keepdims=keepdims))

    return rule


def _prod_grad(g, y, a, axis, keepdims):
    """The product of the other elements, without division, so that zeros are harmless: from the left times from the right."""
    others = tuple(i for i in range(a.ndim) if i not in axis)
    flat = a.permute((*others, *axis)).reshape(*(a.shape[i] for i in others), -1)
    if not flat.shape[-1]:
        return _spread(g, a, axis, keepdims)  # no elements, so none of them has a slope
    ones = flat.new_ones((*flat.shape[:-1], 1))
    left = ones.op("cat", flat.narrow(-1, 0, flat.shape[-1] - 1), axis=len(others)).cumprod(axis=len(others))
    back = flat.op("flip", axes=(len(others),))
    right = ones.op("cat", back.narrow(-1, 0, flat.shape[-1] - 1), axis=len(others)).cumprod(axis=len(others))
    rest = (left * right.op("flip", axes=(len(others),))).reshape([a.shape[i] for i in (*others, *axis)])
    order = (*others, *axis)
    return rest.permute(tuple(order.index(i) for i in range(a.ndim))) * _spread(g, a, axis, keepdims)


def _var(xp, a, correction, *, axis, keepdims):
    centred = a - xp.mean(a, axis=axis, keepdims=True)
    left = count(a.shape, axis) - correction
    spread = xp.real(centred * xp.conj(centred)) if a.dtype in (xp.complex64, xp.complex128) else centred * centred
    return xp.sum(spread, axis=axis, keepdims=keepdims) / (left if left > 0 else xp.zeros((), dtype=spread.dtype))


def _var_grad(g, a, b, axis, keepdims):
    n = count(a.shape, axis)
    slope = 2.0 / (n - b) if n > b else float("nan")
    return _spread(g, a, axis, keepdims) * (a - a.mean(axis=axis, keepdims=True)) * slope


def _std_grad(g, y, a, b, axis, keepdims):
    """As in PyTorch, zero where the deviation is zero."""
    slope = (y == 0).pick(0.0, g / (y * 2.0))
    return _var_grad(slope, a, b, axis, keepdims)


def _logsumexp_shape(a: Spec, *, axis, keepdims) -> Spec:
    return Spec(without(a.shape, axis, keepdims), a.dtype if a.dtype.rank == 2 else float32)


def _logsumexp(xp, a, *, axis, keepdims):
    if any(a.shape[i] == 0 for i in axis):
        return xp.log(xp.sum(a, axis=axis, keepdims=keepdims))
    top = xp.max(a, axis=axis, keepdims=True)
    top = xp.where(xp.abs(top) == float("inf"), 0.0, top)
    total = xp.log(xp.sum(xp.exp(a - top), axis=axis, keepdims=True)) + top
    return xp.reshape(total, without(tuple(a.shape), axis, keepdims))


def _norm(xp, a, *, order, axis, keepdims):
    a = xp.abs(a)
    if order == float("inf") or order == float("-inf"):
        return (xp.max if order > 0 else xp.min)(a, axis=axis, keepdims=keepdims)
    if order == 0:
        return xp.sum(xp.cast(a != 0, float32.code), axis=axis, keepdims=keepdims)
    if order == 2:
        return xp.sqrt(xp.sum(a * a, axis=axis, keepdims=keepdims))
    return xp.sum(a**order, axis=axis, keepdims=keepdims) ** (1.0 / order)


def _norm_shape(a: Spec, *, order, axis, keepdims) -> Spec:
    if abs(order) == float("inf") and any(a.shape[i] == 0 for i in axis):
        raise ValueError(f"no norm of order {order} without elements: shape {a.shape}, axes {axis}")
    return _floating("norm")(a, axis=axis, keepdims=keepdims)


def _norm_grad(g, y, a, order, axis, keepdims):
    g, y = _spread(g, a, axis, keepdims), _spread(y, a, axis, keepdims)
    if order == 0:
        return g * 0.0
    if order == 1:
        return g * a.sgn()
    if abs(order) == float("inf"):
        hit = (a.abs() == y).to(g.dtype)
        return hit / hit.sum(axis=axis, keepdims=True) * a.sgn() * g
    if order == 2:
        return g * (y == 0).pick(0.0, a / y)
    return g * (y == 0).pick(0.0, a.sgn() * (a.abs() / y) ** (order - 1.0))


VAR_TRIES = (((X, 1), {"axis": (0,), "keepdims": False}), ((X, 0), {"axis": (0, 1), "keepdims": True}))
NORM_TRIES = tuple(((X,), {"order": o, "axis": (1,), "keepdims": False}) for o in (2.0, 1.0, 3.0, 0.0, float("inf")))
BOOLS = (((Spec((3, 4), bool_),), {"axis": (0,), "keepdims": False}), TRIES[1])

op("prod", complex="analytic", autocast="high", shape=_sum, shard=reduction_rules("prod"), tries=TRIES, grad=(_prod_grad,),
   kernel=lambda xp, a, *, axis, keepdims: xp.prod(a, axis=axis, keepdims=keepdims))  # fmt: skip
op("any", complex="analytic", shape=_truth, shard=reduction_rules("max", through=False), tries=BOOLS,
   kernel=lambda xp, a, *, axis, keepdims: xp.any(a, axis=axis, keepdims=keepdims))  # fmt: skip
op("all", complex="analytic", shape=_truth, shard=reduction_rules("min", through=False), tries=BOOLS,
   kernel=lambda xp, a, *, axis, keepdims: xp.all(a, axis=axis, keepdims=keepdims))  # fmt: skip
op("var", complex="own", shape=_floating("var"), shard=reduction_rules(), tries=VAR_TRIES, grad=(_var_grad, None),
   kernel=_var)  # fmt: skip
op("std", complex="own", shape=_floating("std"), shard=reduction_rules(), tries=VAR_TRIES, grad=(_std_grad, None),
   kernel=lambda xp, a, correction, *, axis, keepdims: xp.sqrt(
       _var(xp, a, correction, axis=axis, keepdims=keepdims)))  # fmt: skip
op("logsumexp", autocast="high", shape=_logsumexp_shape, shard=reduction_rules(), tries=TRIES,
   kernel=_logsumexp,
   grad=(lambda g, y, a, axis, keepdims: _spread(g, a, axis, keepdims)
         * (a - _spread(y, a, axis, keepdims)).exp(),))  # fmt: skip
op("norm", complex="own", autocast="high", shape=_norm_shape, shard=reduction_rules(), tries=NORM_TRIES, grad=(_norm_grad,),
   kernel=_norm)  # fmt: skip


def _arg(a: Spec, *, axis, keepdims) -> Spec:
    return Spec(_nonempty(a, axis=axis, keepdims=keepdims).shape, int64)


ARG_TRIES = (((X,), {"axis": (1,), "keepdims": False}),)

op("argmax", shape=_arg, shard=reduction_rules(), tries=ARG_TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.argmax(a, axis=axis[0], keepdims=keepdims))  # fmt: skip
op("argmin", shape=_arg, shard=reduction_rules(), tries=ARG_TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.argmin(a, axis=axis[0], keepdims=keepdims))  # fmt: skip
