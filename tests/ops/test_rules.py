"""Every sharding rule, proved: cut the inputs by it, run the pieces apart, join the outputs by it, and the result must be
that of the whole. Pieces are uneven and terms are too, so that no wrong rule passes by luck."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gt.ops import Kind, Row
from gt.ops.table import Rule
from gt.spec import Partial, Replicate, Shard, Spec
from gt.worker.engine.choose import make as engine_for
from tests.ops import samples
from tests.ops.samples import ROWS, Sample, assert_close, several

ENGINES = {name: engine_for(name) for name in ("numpy", "pytorch")}
JOIN = {
    "sum": lambda parts: sum(parts[1:], parts[0]),
    "max": lambda parts: np.maximum.reduce(parts),
    "min": lambda parts: np.minimum.reduce(parts),
    "prod": lambda parts: np.multiply.reduce(parts),
}
RULED = [r for r in ROWS if r.shard is not None]


def terms(value: np.ndarray, reduce: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Three terms of very different size that reduce to the value."""
    if value.dtype == bool:
        other = rng.random(value.shape) < 0.5
        return [value & other, value, value & ~other] if reduce == "max" else [value | other, value, value | ~other]
    if reduce == "sum":
        first = (rng.standard_normal(value.shape) * 3).astype(value.dtype)
        second = (rng.standard_normal(value.shape) * 0.3).astype(value.dtype)
        return [first, second, value - first - second]
    if reduce == "prod":
        first = rng.uniform(0.5, 2.0, value.shape).astype(value.dtype)
        return [first, value / first, np.ones_like(value)]
    away = np.abs(rng.standard_normal(value.shape)).astype(value.dtype) + np.asarray(1, value.dtype)
    lower = value - away if reduce == "max" else value + away
    pick = rng.random(value.shape) < 0.5
    return [np.where(pick, value, lower), np.where(pick, lower, value), lower]


def extent(kind: Kind, rule: Rule) -> int | None:
    """How long the axes are that a rule cuts: all alike, or it is no rule."""
    sizes = {s.shape[p.axis] for s, p in zip((*kind.ins, *kind.outs), (*rule[0], *rule[1])) if isinstance(p, Shard)}
    assert len(sizes) <= 1, f"{rule} cuts axes of {sizes} of {kind}"
    return sizes.pop() if sizes else None


def pieces(size: int | None) -> list[tuple[int, int]]:
    """Uneven pieces of an axis, as the first may hold more, and an empty one, as where there are more workers than
    elements."""
    if size is None:
        return [(0, 0)] * 3
    bounds = sorted({0, (size + 1) // 2, max(size - 1, 0), size})
    return [*[(a, b - a) for a, b in zip(bounds, bounds[1:])], (size, 0)]


def run(engine: Any, kind: Kind, operands: list[Any]) -> tuple[np.ndarray, ...]:
    if engine.name == "pytorch":
        operands = [samples.to_torch(o, s) for o, s in zip(operands, kind.ins)]
    return tuple(samples.as_numpy(a) for a in several(engine.kernel(kind)(*operands)))


def prove(engine: Any, sample: Sample, rule: Rule, rng: np.random.Generator) -> None:
    kind = sample.kind
    assert len(rule[0]) == len(kind.ins) and len(rule[1]) == len(kind.outs), f"{rule} does not fit {kind}"
    size = extent(kind, rule)
    spans = pieces(size)
    if any(isinstance(p, Partial) and p.reduce in ("max", "min") for p in rule[1]):
        spans = [s for s in spans if s[1] or size is None]  # no elements have no extreme: nobody may cut so thin
    operands = [o.copy() if isinstance(o, np.ndarray) else o for o in sample.operands]
    parts: list[list[Any]] = []
    for o, p in zip(operands, rule[0]):
        match p:
            case Shard(axis):
                parts.append([np.take(o, range(a, a + n), axis) for a, n in spans])
            case Partial(reduce):
                parts.append(terms(o, reduce, rng)[: len(spans)])
            case Replicate():
                parts.append([o] * len(spans))
    # terms were dropped where there are fewer pieces than terms: their reduction is the whole
    whole = [JOIN[p.reduce](part) if isinstance(p, Partial) else o for o, p, part in zip(operands, rule[0], parts)]
    wanted = run(engine, kind, whole)
    found = []
    for i, (first, n) in enumerate(spans):
        piece = kind if size is None else kind.piece(rule, first, n)
        found.append(run(engine, piece, [p[i] for p in parts]))
    for i, (to, spec) in enumerate(zip(rule[1], kind.outs)):
        outs = [f[i] for f in found]
        match to:
            case Shard(axis):
                joined = np.concatenate(outs, axis)
            case Partial(reduce):
                joined = JOIN[reduce](outs)
            case Replicate():
                joined = outs[0]
                for other in outs[1:]:
                    assert_close(other, joined, spec, f"{kind} {rule}: replicas differ")
        assert_close(joined, wanted[i], spec, f"{kind} {rule} on {engine.name}", max((1e-4, 1e-4), samples.coarsest(kind)))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("row", RULED, ids=lambda r: r.name)
def test_splitting_running_and_joining_gives_the_whole(row: Row, engine: str):
    rng = np.random.default_rng(7)
    proved = 0
    for sample in samples.plain(row):
        for rule in row.shard(sample.kind):  # type: ignore[misc]
            prove(ENGINES[engine], sample, rule, rng)
            proved += 1
    assert proved, f"{row} has sharding rules, and none applies to its samples"


def test_a_wrong_rule_is_caught():
    row = next(r for r in ROWS if r.name == "exp")
    sample = next(samples.plain(row))
    with pytest.raises(AssertionError):
        prove(ENGINES["numpy"], sample, ((Partial(),), (Partial(),)), np.random.default_rng(7))


def test_rules_name_only_axes_there_are():
    for row in RULED:
        for sample in (*samples.plain(row), *samples.varied(row)):
            for ins, outs in row.shard(sample.kind):  # type: ignore[misc]
                for s, p in zip((*sample.kind.ins, *sample.kind.outs), (*ins, *outs)):
                    if isinstance(p, Shard):
                        assert isinstance(s, Spec) and 0 <= p.axis < s.ndim, f"{p} of {s} in {sample.kind}"
                    elif isinstance(p, Partial):
                        assert isinstance(s, Spec), f"{p} of a number in {sample.kind}"
