"""Products with a sparse matrix, given by the row, the column and the value of each nonzero element."""

from __future__ import annotations

from gt.ops.rules import promote
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Partial, Shard, Spec, float32, int64


def _product(rows: Spec, columns: Spec, values: Spec, dense: Spec, *, n: int) -> Spec:
    if rows.ndim != 1 or not rows.shape == columns.shape == values.shape or {rows.dtype, columns.dtype} != {int64}:
        raise ValueError(
            f"a sparse matrix: expected int64 rows and columns and as many values, got {rows}, {columns} and {values}"
        )
    if dense.ndim != 2 or values.dtype is not dense.dtype:
        raise ValueError(f"a sparse matrix of {values.dtype.name}: expected a matrix of that dtype, got {dense}")
    return Spec((n, dense.shape[1]), promote(values, dense))


def _multiply(xp, rows, columns, values, dense, *, n):
    terms = dense[columns] * values[:, None]
    return xp.add_at(xp.zeros((n, dense.shape[1]), dtype=terms.dtype), (rows,), terms)


def _rules(kind: Kind) -> list[Rule]:
    """Elements may be sharded, which gives partial sums; or the columns of the dense matrix."""
    cut: Rule = ((Shard(0), Shard(0), Shard(0), REPLICATE), (Partial(),))
    return [cut, ((REPLICATE, REPLICATE, REPLICATE, Shard(1)), (Shard(1),))]


ROWS, COLUMNS = Values(Spec((6,), int64), 0, 4), Values(Spec((6,), int64), 0, 3)

op("sparse_matmul", complex="analytic", shape=_product, shard=_rules,
   tries=(((ROWS, COLUMNS, Spec((6,), float32), Spec((3, 2), float32)), {"n": 4}),),
   kernel=_multiply,
   grad=(None, None, lambda g, a, b, d: (g.op("index_select", a, axis=0) * d.op("index_select", b, axis=0)).sum(1),
         lambda g, a, b, c, sd: b.op("sparse_matmul", a, c, g, n=sd.shape[0])))  # fmt: skip
