"""Scaled dot-product attention. Keys may have fewer heads than queries; each of them then serves several."""

from __future__ import annotations

from gt.ops.estimate import PRODUCT
from gt.ops.rules import broadcast
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Placement, Shard, Spec, bool_, float16, float32


def _shape(q: Spec, k: Spec, v: Spec, scale: type, *mask: Spec, causal: bool) -> tuple[Spec, ...]:
    name = "scaled_dot_product_attention"
    if q.dtype.rank != 2 or k.dtype is not q.dtype or v.dtype is not q.dtype:
        raise TypeError(f"{name}: expected one floating-point dtype, got {q.dtype.name}, {k.dtype.name}, {v.dtype.name}")
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ValueError(f"{name}: expected (..., l, e), (..., s, e) and (..., s, f), got {q.shape}, {k.shape}, {v.shape}")
    if k.shape[:-2] != v.shape[:-2]:
        raise ValueError(f"{name}: expected keys and values of one batch, got {k.shape} and {v.shape}")
    if q.shape[:-2] != k.shape[:-2] and (
        q.ndim < 3 or q.shape[:-3] != k.shape[:-3] or not k.shape[-3] or q.shape[-3] % k.shape[-3]
    ):
        raise ValueError(
            f"{name}: expected keys of the batch of the queries {q.shape}, or with a divisor of their heads, got {k.shape}"
        )
    for m in mask:
        if causal:
            raise ValueError(f"{name} takes a mask or causal=True, not both")
        if m.dtype is not bool_ and m.dtype is not q.dtype:
            raise TypeError(f"{name} of {q.dtype.name}: expected a mask of that dtype or bool, got {m.dtype.name}")
        scores = q.shape[:-1] + k.shape[-2:-1]
        if broadcast(m.shape, scores) != scores:
            raise ValueError(f"{name}: expected a mask that fits the scores {scores}, got {m.shape}")
    return Spec(q.shape[:-1] + v.shape[-1:], q.dtype), Spec(q.shape[:-1], float32 if q.dtype.size == 2 else q.dtype)


def _heads(xp, q, k):
    """Keys or values, repeated for each head of the queries."""
    if q.ndim < 3 or q.shape[-3] == k.shape[-3]:
        return k
    times = q.shape[-3] // k.shape[-3]
    wide = xp.broadcast_to(k[..., None, :, :], (*k.shape[:-2], times, *k.shape[-2:]))
    return xp.reshape(wide, (*q.shape[:-3], q.shape[-3], *k.shape[-2:]))


def _fold(xp, g, k):
    """A gradient of repeated heads, summed to the heads of the keys."""
    if g.ndim < 3 or g.shape[-3] == k.shape[-3]:
        return g
    times = g.shape[-3] // k.shape[-3]
    return xp.sum(xp.reshape(g, (*k.shape[:-2], times, *g.shape[-2:])), axis=(-3,))


def _scores(xp, q, k, scale, mask, causal):
    s = xp.matmul(q, xp.swapaxes(k, -1, -2)) * scale
    if causal:
        mask = (_triangle(xp, s.shape[-2], s.shape[-1]),)
    if not mask:
        return s
    m = mask[0]
    return xp.where(m, s, float("-inf")) if m.dtype == xp.dtype(bool_.code) else s + m


def _triangle(xp, rows, columns):
    return xp.reshape(xp.arange(0, rows), (-1, 1)) >= xp.arange(0, columns)


def attend(xp, q, k, v, scale, *mask, causal):
    """A query whose keys are all masked gives zeros, with 0 for the logarithm of its sum."""
    s = _scores(xp, q, _heads(xp, q, k), scale, mask, causal)
    if s.shape[-1] == 0:
        return xp.matmul(s, _heads(xp, q, v)), xp.sum(s, axis=(-1,))
    top = xp.max(s, axis=(-1,), keepdims=True)
    top = xp.where(top == float("-inf"), 0.0, top)
    e = xp.exp(s - top)
    total = xp.sum(e, axis=(-1,), keepdims=True)
    y = xp.matmul(e / xp.where(total == 0, 1.0 + total, total), _heads(xp, q, v))
    lse = xp.where(total == 0, 0.0, xp.log(total) + top)
    return y, xp.reshape(lse, lse.shape[:-1])


def attend_grad(xp, g, q, k, v, y, lse, scale, *mask, causal):
    wide_k, wide_v = _heads(xp, q, k), _heads(xp, q, v)
    s = _scores(xp, q, wide_k, scale, mask, causal)
    p = xp.exp(s - lse[..., None])
    gv = xp.matmul(xp.swapaxes(p, -1, -2), g)
    gp = xp.matmul(g, xp.swapaxes(wide_v, -1, -2))
    gs = p * (gp - xp.sum(g * y, axis=(-1,), keepdims=True)) * scale
    return xp.matmul(gs, wide_k), _fold(xp, xp.matmul(xp.swapaxes(gs, -1, -2), q), k), _fold(xp, gv, v)


def _lower_scores(q, k, scale, mask, causal):
    s = q @ k.mT * scale
    if causal:
        return s.new_ones(s.shape[-2:]).tril().to(bool_).pick(s, float("-inf"))
    if not mask:
        return s
    return mask[0].pick(s, float("-inf")) if mask[0].dtype is bool_ else s + mask[0]


def _lower(q, k, v, scale, *mask, causal):
    times = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    k, v = (t.repeat_interleave(times, dim=-3) if times > 1 else t for t in (k, v))
    s = _lower_scores(q, k, scale, mask, causal)
    s = s.to(float32 if q.dtype.size == 2 else q.dtype)
    lse = s.logsumexp(axis=-1)
    lse = (lse == float("-inf")).pick(0.0, lse)
    return (s - lse.unsqueeze(-1)).exp().to(q.dtype) @ v, lse


def _lower_grad(g, q, k, v, y, lse, scale, *mask, causal):
    """The same from the inputs alone, so that it can be differentiated again."""
    times = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    wide_k, wide_v = (t.repeat_interleave(times, dim=-3) if times > 1 else t for t in (k, v))
    p = _lower_scores(q, wide_k, scale, mask, causal).softmax(axis=-1)
    gp = g @ wide_v.mT
    gs = p * (gp - (gp * p).sum(axis=-1, keepdims=True)) * scale
    gk, gv = gs.mT @ q, p.mT @ g
    if times > 1:
        gk, gv = (t.reshape(*k.shape[:-2], times, *t.shape[-2:]).sum(axis=-3) for t in (gk, gv))
    return gs @ wide_k, gk, gv


def _pull(gs, ys, ins, causal):
    q, k, v, scale, *mask = ins
    found = gs[0].op("attention_grad", q, k, v, ys[0], ys[1], scale, *mask, causal=causal)
    return [*found, None]  # for a mask that requires gradients the client composes attention of other rows


def _rules(key: int):
    """Samples are independent, and heads too if queries and keys (input `key`) have the same number."""

    def rules(kind: Kind) -> list[Rule]:
        q, k = kind.ins[key - 1], kind.ins[key]
        assert isinstance(q, Spec) and isinstance(k, Spec)
        before = kind.ins.index(float)  # the scale; masks, which may lack leading axes, follow it
        found: list[Rule] = []
        for i in range(q.ndim - 2):
            if q.shape[i] == k.shape[i]:
                masks = [_cut(m, i - q.ndim, q.shape[i]) for m in kind.ins[before + 1 :]]
                found.append(((*[Shard(i)] * before, REPLICATE, *masks), (Shard(i),) * len(kind.outs)))
        return found

    return rules


def _cut(mask, axis: int, size: int) -> Placement:
    at = axis + mask.ndim
    return Shard(at) if at >= 0 and mask.shape[at] == size else REPLICATE


def _grad_shape(
    g: Spec, q: Spec, k: Spec, v: Spec, y: Spec, lse: Spec, scale: type, *mask: Spec, causal: bool
) -> tuple[Spec, ...]:  # fmt: skip
    made = _shape(q, k, v, scale, *mask, causal=causal)
    if (y, lse) != made or g is not y:
        raise ValueError(f"the gradient of attention: expected a gradient and results of {made}, got {g}, {y} and {lse}")
    return q, k, v


Q, K, V = Spec((3, 2, 4, 3), float32), Spec((3, 2, 5, 3), float32), Spec((3, 2, 5, 3), float32)
ONE_HEAD = Spec((3, 1, 5, 3), float32)
Y, LSE = Spec((3, 2, 4, 3), float32), Values(Spec((3, 2, 4), float32), 3.0, 4.0)
MASK = Spec((2, 4, 5), float32)
H = Spec((3, 2, 4, 3), float16)

op("attention", products=True, compute_seconds=lambda kind: 4 * PRODUCT * kind.ins[0].numel * kind.ins[1].shape[-2],
   unchecked="a b c d y0",
   autocast="low", shape=_shape, shard=_rules(1), saved=1, keep="inputs outputs", grad=_pull,
   tries=(((Q, K, V, 0.5), {"causal": False}), ((Q, K, V, 0.5), {"causal": True}),
          ((Q, K, V, 0.5, MASK), {"causal": False}), ((Q, K, V, 0.5, Spec((3, 1, 4, 5), bool_)), {"causal": False}),
          ((Q, ONE_HEAD, ONE_HEAD, 0.5), {"causal": True}),
          ((Spec((4, 3), float32), Spec((5, 3), float32), Spec((5, 2), float32), 0.5), {"causal": False})),
   kernel=attend, lower=_lower)  # fmt: skip
op("attention_grad", products=True, compute_seconds=lambda kind: 10 * PRODUCT * kind.ins[1].numel * kind.ins[2].shape[-2],
   shape=_grad_shape, shard=_rules(2),
   tries=(((Y, Q, K, V, Y, LSE, 0.5), {"causal": False}), ((Y, Q, K, V, Y, LSE, 0.5), {"causal": True}),
          ((Y, Q, ONE_HEAD, ONE_HEAD, Y, LSE, 0.5), {"causal": True}),
          ((Y, Q, K, V, Y, LSE, 0.5, MASK), {"causal": False}), ((H, H, H, H, H, LSE, 0.5), {"causal": True})),
   kernel=attend_grad, lower=_lower_grad)  # fmt: skip
