"""`out=`: the result of a function written into an existing tensor, for all functions that accept it in PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.fourier import FFT
from gt.client.functions.linalg import LINALG
from gt.client.functions.registry import FUNCTIONS
from gt.client.functions.special import SPECIAL
from gt.client.grad_mode import no_grad
from gt.client.scope import is_grad_enabled
from gt.client.views import cut, is_view
from gt.client.writes import assign
from gt.errors import ArgumentTypeError
from gt.parameters import parameters

NAMES = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "addbmm",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "addr",
    "alias_copy",
    "all",
    "amax",
    "amin",
    "aminmax",
    "angle",
    "any",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "as_strided_copy",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "baddbmm",
    "bernoulli",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bmm",
    "bucketize",
    "cat",
    "ceil",
    "cholesky",
    "cholesky_inverse",
    "cholesky_solve",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "column_stack",
    "complex",
    "concat",
    "concatenate",
    "conj_physical",
    "copysign",
    "cos",
    "cosh",
    "cross",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "deg2rad",
    "diag",
    "diagonal_copy",
    "diff",
    "digamma",
    "div",
    "divide",
    "dot",
    "dstack",
    "empty",
    "eq",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expand_copy",
    "expm1",
    "eye",
    "fix",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frac",
    "frexp",
    "full",
    "gather",
    "gcd",
    "ge",
    "geqrf",
    "ger",
    "greater",
    "greater_equal",
    "gt",
    "heaviside",
    "histc",
    "histogram",
    "hstack",
    "hypot",
    "i0",
    "igamma",
    "igammac",
    "index_add",
    "index_copy",
    "index_reduce",
    "index_select",
    "inner",
    "inverse",
    "isin",
    "isneginf",
    "isposinf",
    "kron",
    "kthvalue",
    "lcm",
    "ldexp",
    "le",
    "lerp",
    "less",
    "less_equal",
    "lgamma",
    "linspace",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logspace",
    "logsumexp",
    "lt",
    "lu",
    "lu_solve",
    "lu_unpack",
    "masked_select",
    "matmul",
    "matrix_power",
    "max",
    "maximum",
    "mean",
    "median",
    "min",
    "minimum",
    "mm",
    "mode",
    "msort",
    "mul",
    "multinomial",
    "multiply",
    "mv",
    "mvlgamma",
    "nan_to_num",
    "nanmean",
    "nanmedian",
    "nanquantile",
    "nansum",
    "narrow_copy",
    "ne",
    "neg",
    "negative",
    "nextafter",
    "nonzero",
    "norm",
    "normal",
    "not_equal",
    "ones",
    "orgqr",
    "ormqr",
    "outer",
    "permute_copy",
    "polar",
    "polygamma",
    "pow",
    "prod",
    "qr",
    "quantile",
    "rad2deg",
    "rand",
    "randint",
    "randn",
    "randperm",
    "range",
    "reciprocal",
    "remainder",
    "renorm",
    "round",
    "row_stack",
    "rsqrt",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "searchsorted",
    "sgn",
    "sigmoid",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "slice_scatter",
    "softmax",
    "sort",
    "split_with_sizes_copy",
    "sqrt",
    "square",
    "squeeze_copy",
    "stack",
    "std",
    "sub",
    "subtract",
    "sum",
    "svd",
    "t_copy",
    "take",
    "take_along_dim",
    "tan",
    "tanh",
    "tensordot",
    "topk",
    "transpose_copy",
    "triangular_solve",
    "tril",
    "triu",
    "true_divide",
    "trunc",
    "unbind_copy",
    "unfold_copy",
    "unsqueeze_copy",
    "var",
    "vdot",
    "view_copy",
    "vstack",
    "where",
    "xlogy",
    "zeros",
]


ONE = {"nonzero"}  # functions that may have several results, and write only a single one into out=
SILENT = {"split_with_sizes_copy", "unbind_copy"}  # functions that return nothing with out=, in PyTorch as well


def with_out(name: str, f: Callable) -> Callable:
    """A function that takes `out=`: a tensor, or as many as it has results."""
    typed = "dtype" in parameters(f).names

    @wraps(f)
    def call(*args: Any, out: Any = None, **settings: Any) -> Any:
        if out is None:
            return f(*args, **settings)
        if name in ONE and not isinstance(out, Tensor):
            raise ArgumentTypeError(f"{name}(): argument 'out' must be Tensor, not {type(out).__name__}")
        targets = (out,) if isinstance(out, Tensor) else tuple(out)
        inputs = [t for a in (*args, *settings.values()) for t in (a if isinstance(a, (tuple, list)) else (a,))]
        inputs = [t for t in inputs if isinstance(t, Tensor)]
        if is_grad_enabled() and any(t.requires_grad for t in (*inputs, *targets)):
            raise RuntimeError(
                f"{name}(): functions with out=... arguments don't support automatic differentiation, but one of the "
                "arguments requires grad."
            )
        if typed and not inputs and settings.get("dtype") is None:
            settings["dtype"] = targets[0].dtype
        with no_grad():
            found = f(*args, **settings)
            results = (found,) if isinstance(found, Tensor) else tuple(t for t in found if isinstance(t, Tensor))
            if len(results) != len(targets):
                raise TypeError(f"{name}() has {len(results)} results and {len(targets)} tensors to write them into")
            for target, value in zip(targets, results):
                _fill(target, value)
        if isinstance(out, Tensor):
            return out
        if name in SILENT:
            return None
        return type(found)(*targets) if hasattr(found, "_fields") else targets

    call.takes_out = True  # type: ignore[attr-defined]
    return call


def _fill(target: Tensor, value: Tensor) -> None:
    """Write a result into a tensor, which is resized if its shape differs."""
    have, want = target.handle.spec, value.handle.spec
    if want.dtype.rank > have.dtype.rank:
        raise RuntimeError(f"result type {want.dtype.name} can't be cast to the desired output type {have.dtype.name}")
    if have.shape == want.shape:
        assign(target, value)
        return
    if have.numel:
        if is_view(target):
            raise RuntimeError(f"out= is a view of shape {list(have.shape)}, and the result is of {list(want.shape)}")
        warnings.warn(
            f"An output with one or more elements was resized since it had shape {list(have.shape)}, which does not match the "
            f"required output shape {list(want.shape)}. This behavior is deprecated.",
            UserWarning,
            stacklevel=3,
        )
    cut(target).handle = value.to(have.dtype).handle


for _name in NAMES:
    if _name in FUNCTIONS:
        FUNCTIONS[_name] = with_out(_name, FUNCTIONS[_name])
WITHOUT = {"diagonal", "matrix_exp", "vander", "log_softmax", "softmax", "fftshift", "ifftshift"}  # in PyTorch, too
for _namespace in (LINALG, SPECIAL, FFT):
    for _name in set(_namespace) - WITHOUT:
        if not hasattr(_namespace[_name], "takes_out"):
            _namespace[_name] = with_out(_name, _namespace[_name])
