"""Arguments and results that PyTorch's gradients read, for functions whose gradient here reads others: in-place writes to them
are refused alike."""

from __future__ import annotations

from collections.abc import Callable

from gt.client.autograd import Tensor
from gt.client.functions.linalg import LINALG
from gt.client.functions.registry import FUNCTIONS
from gt.client.functions.special import SPECIAL
from gt.client.saved import saves

BOTH = ("input", "other")
SAVED: dict[str, tuple[str, ...]] = {
    "cdist": ("x1", "x2"),
    "cholesky_solve": ("B",),
    "combinations": ("input",),
    "cummax": ("input",),
    "cummin": ("input",),
    "dist": BOTH,
    "gather": ("input", "index"),
    "index_add": ("source",),
    "index_fill": ("index",),
    "index_put": ("indices",),
    "index_copy": ("source",),
    "index_reduce": ("input", "source", "result"),
    "ldexp": ("result",),
    "logaddexp2": BOTH,
    "logit": ("input",),
    "masked_scatter": ("mask",),
    "masked_select": ("input", "mask"),
    "mvlgamma": ("input",),
    "nan_to_num": ("input",),
    "nanmean": ("input",),
    "nansum": ("input",),
    "nextafter": BOTH,
    "ormqr": ("input", "result"),
    "polar": ("result",),
    "put": ("source",),
    "scatter_reduce": ("input", "src", "result"),
    "scatter": ("index",),
    "sgn": ("input", "result"),
    "sinc": ("input",),
    "take": ("input",),
    "triangular_solve": ("input",),
    "take_along_dim": ("input",),
    "angle": ("input",),
    "complex": ("real", "imag"),
}
LINALG_SAVED: dict[str, tuple[str, ...]] = {
    "householder_product": ("input", "result"),
    "lstsq": ("result 0",),
    "lu": ("result",),
    "lu_solve": ("pivots", "result"),
    "solve_ex": ("A",),
    "solve_triangular": ("result",),
}
SPECIAL_SAVED: dict[str, tuple[str, ...]] = {"log_ndtr": ("result",)}


def _wrap(namespace: dict[str, Callable], table: dict[str, tuple[str, ...]]) -> None:
    for name, saved in table.items():
        f = namespace[name]
        namespace[name] = call = saves(*saved)(f)
        if vars(Tensor).get(name) is f:
            setattr(Tensor, name, call)


_wrap(FUNCTIONS, SAVED)
_wrap(LINALG, LINALG_SAVED)
_wrap(SPECIAL, SPECIAL_SAVED)
