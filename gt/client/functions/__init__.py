"""What users call: functions of the `gt` namespace and methods of Tensor, a module a family, named as the families of gt/ops
where there is one. Pointwise ones come from the op table; the rest normalise their arguments (NumPy's and PyTorch's spellings
both) and apply a row."""

from __future__ import annotations

from gt.client.functions import pointwise as pointwise  # first: some functions replace those that are written from rows

# isort: split
from gt.client.functions import (
    activation,
    attributes,
    calculus,
    complex_numbers,
    create,
    diagonals,
    dtype_info,
    elementwise,
    factor,
    fourier,
    grids,
    histograms,
    hooks,
    index,
    index_arrays,
    join,
    leastsquares,
    linalg,
    math,
    movement,
    norm,
    operators,
    process,
    products,
    quantiles,
    random,
    read,
    reduce,
    reshape,
    scan,
    scatter,
    settings,
    sort,
    sparse,
    special,
    split,
    torch_exchange,
    vector_norms,
    view_copies,
    windows,
)

# isort: split
from gt.client.functions import arguments as arguments  # it checks what the others were given

# isort: split
from gt.client.functions import saved as saved

# isort: split
from gt.client.functions import out as out  # last: it wraps them all
from gt.client.functions.registry import FUNCTIONS

__all__ = ["FUNCTIONS", "activation", "attributes", "calculus", "complex_numbers", "create", "diagonals", "dtype_info"]
__all__ += ["elementwise", "factor", "fourier", "grids", "histograms", "hooks", "index", "index_arrays", "join", "leastsquares"]
__all__ += [
    "linalg",
    "math",
    "movement",
    "norm",
    "operators",
    "process",
    "products",
    "quantiles",
    "random",
    "read",
    "reduce",
    "reshape",
]
__all__ += ["scan", "scatter", "settings", "sort", "sparse", "special", "split", "torch_exchange", "vector_norms"]
__all__ += ["view_copies", "windows"]
