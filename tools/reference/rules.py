"""The op table's rules of shapes, dtypes and shards, in words."""

from __future__ import annotations

from functools import cache

from gt.ops.table import TABLE, Row, Try, Values, infer
from gt.spec import DTYPES, Shard, Spec


def rules(name: str) -> list[str]:
    """Lines about the row of this name; none where no row has it."""
    row = TABLE.get(name)
    return [*_rules(row)] if row is not None and row.tries else []


@cache
def _rules(row: Row) -> tuple[str, ...]:
    lines = [f"- **Shapes**: {_shapes(row)}", f"- **Dtypes**: {_dtypes(row)}"]
    cut = _shards(row)
    lines += [f"- **Sharded** without communication: {cut}"] if cut else []
    lines += ["- **Gradient**: yes"] if row.grad is not None or row.lower is not None and not row.random else []
    return (*lines, "")


def _specs(attempt: Try) -> list:
    return [o.spec if isinstance(o, Values) else o if isinstance(o, Spec | type) else type(o) for o in attempt[0]]


def _kind(row: Row, attempt: Try, ins: list | None = None):  # noqa: ANN202
    statics = {**row.defaults, **attempt[1]}
    return infer(row, tuple(ins or _specs(attempt)), tuple(statics[n] for n in row.statics))


def _shape(s: object) -> str:
    return f"({', '.join(map(str, s.shape))}{',' if len(s.shape) == 1 else ''})" if isinstance(s, Spec) else s.__name__  # type: ignore[attr-defined]


def _shapes(row: Row) -> str:
    if row.pointwise:
        return "operands broadcast, as in NumPy; the result has the shape they broadcast to"
    kind = _kind(row, row.tries[0])
    given = ", ".join(f"{k}={v}" for k, v in kind.settings.items() if v is not None)
    return f"for example {', '.join(map(_shape, kind.ins)) or 'nothing'}{f' with {given}' if given else ''} gives " + ", ".join(
        map(_shape, kind.outs)
    )


def _dtypes(row: Row) -> str:
    """The result's dtype for each dtype of the operands, dtypes that are kept in one group."""
    found: dict[str, list[str]] = {}
    attempt = row.tries[0]
    specs = _specs(attempt)
    if not any(isinstance(s, Spec) for s in specs):
        return ", ".join(s.dtype.name for s in _kind(row, attempt).outs)
    first = next(s.dtype for s in specs if isinstance(s, Spec))
    for dtype in DTYPES:
        ins = [Spec(s.shape, dtype) if isinstance(s, Spec) and s.dtype is first else s for s in specs]
        try:
            out = _kind(row, attempt, ins).outs[0].dtype
        except (ValueError, TypeError, RuntimeError):
            found.setdefault("is refused", []).append(dtype.name)
        else:
            found.setdefault("is kept" if out is dtype else f"gives {out.name}", []).append(dtype.name)
    return "; ".join(f"{', '.join(names)} {what}" for what, names in found.items())


def _shards(row: Row) -> str:
    if row.shard is None:
        return ""
    kind = _kind(row, row.tries[0])
    ways = {_way(rule) for rule in row.shard(kind)}
    return "; ".join(sorted(ways))


def _way(rule) -> str:  # noqa: ANN001
    def said(p: object) -> str:
        return f"axis {p.axis} cut" if isinstance(p, Shard) else str(p).lower().rstrip("()")

    return f"{', '.join(map(said, rule[0]))} to {', '.join(map(said, rule[1]))}"
