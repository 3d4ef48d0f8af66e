"""Which products of a graph tensor cores compute from split factors, and in how many parts."""

from __future__ import annotations

import math

from gt.ops import Kind
from gt.spec import Spec, float32
from gt.worker.programs.passes.split_factors import ProductSizes

DEPTH = 64  # terms that tensor cores add up
MULTIPLE = 16  # of rows and columns
LEAST = 1 << 28  # multiplications
MOST = 1 << 29  # elements of a factor or the product, so that indices, also of pieces, have 32 bits
PROCESSORS = 132  # of a device
DEEP = 256  # least terms of a part
TURNED = {"linear": (False, True), "matmul": (False, False), "linear_weight_grad": (True, False)}


ROWS = COLUMNS = 64  # of a tile: two programs run at a time on each of a device's processors, and larger ones take longer


def product_sizes(kind: Kind) -> ProductSizes | None:
    """The sizes of a float32 product that is large enough, in the highest precision; None of others."""
    turned = TURNED.get(kind.row.name)
    if turned is None or kind.precision or not all(type(s) is Spec and s.dtype is float32 for s in kind.ins):
        return None
    a, b = kind.ins[:2]
    if a.ndim < 2 or b.ndim < 2 or b.ndim > 2 and not turned[0]:
        return None
    (rows, depth), (_, columns) = (_matrix(s)[::-1] if t else _matrix(s) for s, t in zip((a, b), turned))
    fits = rows % MULTIPLE == columns % MULTIPLE == depth % DEPTH == 0 and max(a.numel, b.numel, rows * columns) <= MOST
    if not fits or rows * columns * depth < LEAST:
        return None
    return ProductSizes(rows, columns, depth, turned, kind.outs[0].shape)


def _matrix(spec: Spec) -> tuple[int, int]:
    return math.prod(spec.shape[:-1]), spec.shape[-1]


def depth_parts(sizes: ProductSizes) -> int:
    """The parts of the depth that programs of their own add up, so that a device has no fewer programs than processors."""
    count, parts = tile_count(sizes), 1
    while count * parts < PROCESSORS and sizes.depth % (2 * parts * DEPTH) == 0 and sizes.depth // (2 * parts) >= DEEP:
        parts *= 2
    return parts


def tile_count(sizes: ProductSizes) -> int:
    return -(-sizes.rows // ROWS) * -(-sizes.columns // COLUMNS)
