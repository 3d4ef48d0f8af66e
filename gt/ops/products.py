"""Ops that sum products over shared axes."""

from __future__ import annotations

from math import prod

from gt.errors import UnsupportedDTypeError
from gt.ops.estimate import PRODUCT
from gt.ops.rules import broadcast, promote
from gt.ops.table import Kind, Rule, op
from gt.spec import REPLICATE, Partial, Placement, Shard, Spec, bool_, float32


def _matmul(a: Spec, b: Spec) -> Spec:
    want = "expected (..., m, k) and (..., k, n)"
    for operand in (a, b):
        if not isinstance(operand, Spec):
            raise TypeError(f"matmul: expected tensors, got {operand.__name__}: use * for a number")
    if not a.shape or not b.shape:
        raise ValueError(f"cannot matmul {a.shape} by {b.shape}: {want}; use * for a 0-d tensor")
    if a.dtype is not b.dtype:
        raise TypeError(f"cannot matmul {a.dtype.name} by {b.dtype.name}: expected one dtype")
    if a.dtype is bool_:
        raise UnsupportedDTypeError(f"cannot matmul {a.dtype.name} by {b.dtype.name}: cast first")
    left, right = a.shape, b.shape
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ValueError(f"cannot matmul {left} by {right}: {want}, found k = {left[-1]} and {inner}")
    shape = broadcast(left[:-2], right[:-2])
    return Spec(shape + (left[-2:-1] if len(left) > 1 else ()) + (right[-1:] if len(right) > 1 else ()), a.dtype)


def _left_grad(g, sa, b):
    if sa.ndim == b.ndim == 1:
        return g * b
    if sa.ndim == 1:
        return (g.unsqueeze(-2) @ b.mT).squeeze(-2)
    return g.unsqueeze(-1) @ b.unsqueeze(0) if b.ndim == 1 else g @ b.mT


def _right_grad(g, a, sb):
    if a.ndim == sb.ndim == 1:
        return g * a
    if a.ndim == 1:
        return a.unsqueeze(-1) @ g.unsqueeze(-2)
    return (a.mT @ g.unsqueeze(-1)).squeeze(-1) if sb.ndim == 1 else a.mT @ g


def einsum_rules(terms: list[str], out: str) -> list[Rule]:
    """Placements of a contraction: a letter sharded in all operands that have it, which gives partial sums if it is summed
    over."""
    rules: list[Rule] = []
    for letter in sorted(set("".join(terms))):
        ins: tuple[Placement, ...] = tuple(Shard(t.index(letter)) if letter in t else REPLICATE for t in terms)
        rules.append((ins, (Shard(out.index(letter)) if letter in out else Partial(),)))
    for i in range(len(terms)):
        rules.append((tuple(Partial() if j == i else REPLICATE for j in range(len(terms))), (Partial(),)))
    return rules


def _matmul_rules(kind: Kind) -> list[Rule]:
    a, b = (s.shape for s in kind.ins)
    if len(a) > 2 and len(b) > 2 and a[:-2] != b[:-2]:
        return []
    batch = "abcdefgh"[: max(len(a), len(b), 2) - 2]
    left = ("" if len(a) <= 2 else batch) + ("mk" if len(a) > 1 else "k")
    right = ("" if len(b) <= 2 else batch) + ("kn" if len(b) > 1 else "k")
    return einsum_rules([left, right], batch + left[-2:-1] * (len(a) > 1) + right[-1:] * (len(b) > 1))


X, W, B = Spec((4, 3), float32), Spec((5, 3), float32), Spec((5,), float32)


def _product_seconds(kind: Kind) -> float:
    left = kind.ins[1 if len(kind.ins) > 3 else 0]  # the first operand of `addmm` is added to the product
    return PRODUCT * kind.outs[0].numel * (left.shape[-1] if left.shape else 1)


def _weight_grad_seconds(kind: Kind) -> float:
    return PRODUCT * kind.ins[0].numel * kind.ins[1].shape[-1]


op("matmul", blas=True, products=True, compute_seconds=_product_seconds, plain_name="matmul", complex="analytic",
   autocast="low", shape=_matmul, shard=_matmul_rules, grad=(_left_grad, _right_grad),
   tries=(((X, Spec((3, 2), float32)), {}), ((Spec((2, 4, 3), float32), Spec((3, 2), float32)), {}),
          ((Spec((3,), float32), Spec((3,), float32)), {}), ((X, Spec((3,), float32)), {})),
   kernel=lambda xp, a, b: xp.matmul(a, b))  # fmt: skip


def _linear(x: Spec, w: Spec, b: Spec | None = None) -> Spec:
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != w.shape[1]:
        raise ValueError(f"cannot apply linear of weight {w.shape} to {x.shape}: expected (..., {w.shape[-1]})")
    if b is not None and b.shape != w.shape[:1]:
        raise ValueError(f"linear of weight {w.shape}: expected a bias of {w.shape[:1]}, got {b.shape}")
    if len({s.dtype for s in (x, w, b) if s is not None}) > 1:
        raise TypeError(f"linear: expected one dtype, got {', '.join(s.dtype.name for s in (x, w, b) if s is not None)}")
    return Spec((*x.shape[:-1], w.shape[0]), promote(x, w))


def _weight_grad(g: Spec, x: Spec) -> Spec:
    if not g.shape or g.shape[:-1] != x.shape[:-1] or g.ndim != x.ndim or g.dtype is not x.dtype:
        raise ValueError(f"the gradient of linear's weight: expected ({x.dtype.name}{[*x.shape[:-1], 'n']}), got {g}")
    return Spec((g.shape[-1], x.shape[-1]), g.dtype)


def _weight_grad_rules(kind: Kind) -> list[Rule]:
    batch = "abcdefgh"[: len(kind.ins[0].shape) - 1]
    return einsum_rules([batch + "n", batch + "k"], "nk")


def _bias_grad_rules(kind: Kind) -> list[Rule]:
    batch = "abcdefgh"[: len(kind.ins[0].shape) - 1]
    return einsum_rules([batch + "n"], "n")


def _linear_rules(kind: Kind) -> list[Rule]:
    """As x @ w.T + b, where the bias must not be added on each holder of a partial sum."""
    batch = "abcdefgh"[: len(kind.outs[0].shape) - 1]
    rules = einsum_rules([batch + "k", "nk"], batch + "n")
    if len(kind.ins) == 2:
        return rules
    kept = [r for r in rules if not isinstance(r[1][0], Partial)]
    return [((*ins, Shard(0) if ins[1] == Shard(0) else REPLICATE), out) for ins, out in kept]


def _rows(xp, a):
    return xp.reshape(a, (Spec(tuple(a.shape[:-1])).numel, a.shape[-1]))


op("linear", blas=True, products=True, compute_seconds=_product_seconds, complex="analytic", autocast="low",
   shape=_linear, shard=_linear_rules,
   grad=(lambda g, b: g @ b, lambda g, a: g.op("linear_weight_grad", a),
         lambda g, sc: g.op("linear_bias_grad") if g.shape != sc.shape else g),
   tries=(((X, W, B), {}), ((X, W), {}), ((Spec((2, 4, 3), float32), W, B), {}), ((Spec((3,), float32), W, B), {})),
   lower=lambda x, w, *b: x @ w.mT + b[0] if b else x @ w.mT,
   kernel=lambda xp, x, w, *b: xp.matmul(x, xp.swapaxes(w, 0, 1)) + (b[0] if b else 0))  # fmt: skip
op("linear_bias_grad", complex="analytic", shape=lambda g: Spec(g.shape[-1:], g.dtype), shard=_bias_grad_rules,
   tries=(((Spec((4, 5), float32),), {}), ((Spec((2, 4, 5), float32),), {})),
   kernel=lambda xp, g: xp.sum(g, axis=tuple(range(g.ndim - 1)), keepdims=False),
   grad=(lambda g, sa: g.expand(sa.shape),))  # fmt: skip
op("linear_weight_grad", products=True, compute_seconds=_weight_grad_seconds, complex="analytic",
   shape=_weight_grad, shard=_weight_grad_rules,
   tries=(((Spec((4, 5), float32), X), {}), ((Spec((2, 4, 5), float32), Spec((2, 4, 3), float32)), {})),
   kernel=lambda xp, g, x: xp.matmul(xp.swapaxes(_rows(xp, g), 0, 1), _rows(xp, x)),
   grad=(lambda g, b: b @ g.mT, lambda g, a: a @ g))  # fmt: skip


def _add_product(c: Spec, a: Spec, b: Spec, beta: type, alpha: type) -> Spec:
    if not a.ndim == b.ndim >= 2 or len({a.dtype, b.dtype, c.dtype}) > 1:
        raise ValueError(f"addmm: expected matrices of one dtype, got {c}, {a} and {b}")
    out = _matmul(a, b)
    if broadcast(c.shape, out.shape) != out.shape:
        raise ValueError(f"cannot add {c.shape} to the product {out.shape} of {a.shape} and {b.shape}")
    return out


def _addmm_rules(kind: Kind) -> list[Rule]:
    """As matmul, where the added tensor must not be added on each holder of a partial sum."""
    c, a, b = kind.ins[:3]
    found: list[Rule] = []
    for ins, (out,) in _matmul_rules(Kind(kind.row, (a, b), (), kind.outs, "")) if a.shape[:-2] == b.shape[:-2] else []:
        if isinstance(out, Shard):
            at = out.axis - (kind.outs[0].ndim - c.ndim)
            whole = at < 0 or c.shape[at] != kind.outs[0].shape[out.axis]
            found.append(((REPLICATE if whole else Shard(at), *ins, REPLICATE, REPLICATE), (out,)))
    return found


op("addmm", blas=True, products=True, compute_seconds=_product_seconds, complex="analytic", autocast="low",
   shape=_add_product, shard=_addmm_rules,
   tries=(((Spec((2,), float32), X, Spec((3, 2), float32), 0.5, 2.0), {}),
          ((Spec((2, 4, 2), float32), Spec((2, 4, 3), float32), Spec((2, 3, 2), float32), 1.0, 1.0), {})),
   kernel=lambda xp, c, a, b, beta, alpha: (beta * c if beta else 0) + alpha * xp.matmul(a, b),
   grad=(lambda g, d: g * d, lambda g, c, e: g @ c.mT * e, lambda g, b, e: b.mT @ g * e, None, None))  # fmt: skip


def sides(equation: str) -> tuple[list[str], str]:
    """The letters of each operand and of the result."""
    left, out = equation.split("->")
    return left.split(","), out


def _einsum(*operands: Spec, equation: str) -> Spec:
    terms, out = sides(equation)
    sizes: dict[str, int] = {}
    if len(terms) != len(operands):
        raise ValueError(f"einsum {equation!r}: expected {len(terms)} tensors, got {len(operands)}")
    if len({s.dtype for s in operands}) > 1:
        raise TypeError(f"einsum: expected one dtype, got {', '.join(s.dtype.name for s in operands)}")
    for term, s in zip(terms, operands):
        if len(term) != s.ndim:
            raise ValueError(f"einsum {equation!r}: {term!r} does not have a letter for each axis of {s.shape}")
        for letter, d in zip(term, s.shape):
            if sizes.setdefault(letter, d) != d:
                raise ValueError(f"einsum {equation!r}: {letter!r} has the sizes {sizes[letter]} and {d}")
    if not set(out) <= set(sizes) or len(set(out)) < len(out):
        raise ValueError(f"einsum {equation!r}: expected letters of the operands in the result, each once")
    return Spec(tuple(sizes[letter] for letter in out), operands[0].dtype)


def _einsum_rules(kind: Kind) -> list[Rule]:
    terms, out = sides(kind.settings["equation"])
    if any(len(set(t)) < len(t) for t in terms):
        return []
    return einsum_rules(terms, out)


def _einsum_seconds(kind: Kind) -> float:
    """A product for each combination of the indices; operands after the second are contracted one by one."""
    terms, _ = sides(kind.settings["equation"])
    sizes = {letter: d for term, s in zip(terms, kind.ins) for letter, d in zip(term, s.shape)}
    return PRODUCT * prod(sizes.values()) if len(terms) > 1 else 0.0


def _einsum_pull(gs, ys, ins, equation):
    """For each operand: the contraction of the others and the gradient, broadcast over letters that only this operand has."""
    terms, out = sides(equation)
    found = []
    for i, (term, x) in enumerate(zip(terms, ins)):
        others = [(t, v) for j, (t, v) in enumerate(zip(terms, ins)) if j != i]
        known = set(out).union(*(t for t, _ in others))
        short = "".join(c for c in term if c in known)
        parts = ",".join([out, *(t for t, _ in others)])
        g = gs[0].op("einsum", *(v for _, v in others), equation=f"{parts}->{short}")
        if short != term:
            g = g.reshape([d if c in known else 1 for c, d in zip(term, x.shape)]).expand(x.shape)
        found.append(g)
    return found


op("einsum", products=True, compute_seconds=_einsum_seconds, unchecked="a b c d",
   complex="analytic", autocast="low", shape=_einsum, shard=_einsum_rules, keep="inputs", grad=_einsum_pull,
   tries=(((X, W), {"equation": "ik,jk->ji"}), ((X, Spec((4,), float32)), {"equation": "ab,a->b"}),
          ((X,), {"equation": "ab->b"}), ((Spec((2, 4, 3), float32), Spec((2, 3, 5), float32)), {"equation": "bik,bkj->bij"})),
   kernel=lambda xp, *operands, equation: xp.einsum(equation, *operands))  # fmt: skip
