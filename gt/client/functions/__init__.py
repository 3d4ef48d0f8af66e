"""Functions of the `gt` namespace and methods of Tensor, one module for each family, named as the families of gt/ops. Pointwise
functions are generated from the op table; the others normalise their arguments (NumPy's and PyTorch's spellings) and apply a
row."""

from __future__ import annotations

from gt.client.functions import pointwise as pointwise  # first: some modules replace generated functions

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
from gt.client.functions import arguments as arguments  # checks the arguments of all functions

# isort: split
from gt.client.functions import saved as saved

# isort: split
from gt.client.functions import out as out  # last: it wraps all functions
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
