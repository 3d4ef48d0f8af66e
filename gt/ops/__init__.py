"""The op table, filled: import this, and every row is there."""

from gt.ops import (
    activation,
    attention,
    bessel,
    bits,
    channelnorm,
    collective,
    complex_numbers,
    conv,
    create,
    elementwise,
    factor,
    fourier,
    index,
    index_arrays,
    linalg,
    loss,
    lu,
    math,
    movement,
    norm,
    pool,
    products,
    random,
    reduce,
    scan,
    scatter,
    sort,
    sparse,
    special,
    update,
)
from gt.ops.table import TABLE, Kind, Operand, Row, Values, infer, row, rows

__all__ = ["TABLE", "Kind", "Operand", "Row", "Values", "infer", "row", "rows"]
__all__ += [
    "activation",
    "attention",
    "bessel",
    "bits",
    "channelnorm",
    "collective",
    "complex_numbers",
    "products",
    "conv",
    "create",
    "elementwise",
    "factor",
    "fourier",
    "index",
]
__all__ += ["linalg", "loss", "lu", "math", "movement", "norm", "index_arrays", "pool", "random", "reduce", "scan", "scatter"]
__all__ += ["sort", "sparse", "special", "update"]
