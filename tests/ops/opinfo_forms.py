"""Other forms of PyTorch's ops, compared as the plain ones are: calls that PyTorch refuses, in place, `out=`, dtypes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import gt
from gt.spec import dtype_of
from tests.ops.opinfo import GT, PyTorch, Unsupported, compare, evaluate, judge, leaves, rebound, sample_dtype, samples, wanted
from tests.ops.opinfo_writes import writes


def plain(op: Any, side: GT, count: int) -> list[str]:
    """The faults of results and gradients, one for each of the first samples ("" for none)."""
    return [_judged(op, s, side) for s in samples(op, sample_dtype(op), count)]


def refused(op: Any, side: GT, count: int) -> list[str]:
    """The fault where PyTorch raises an error."""
    if op.error_inputs_func is None:
        return []
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given in op.error_inputs("cpu"):
            want = evaluate(PyTorch(), op, given.sample_input, False)
            if want.error is not None and "out" not in given.sample_input.kwargs:
                try:
                    found.append(compare(want, evaluate(side, op, given.sample_input, False)))
                except Unsupported:
                    continue
    return found


def in_place(op: Any, side: GT, count: int) -> list[str]:
    """The faults of the form that changes its tensor, which it has to return."""
    method = op.inplace_variant
    if method is None:
        return []

    def change(own: Any) -> Callable:
        def call(x: Any, *args: Any, **kwargs: Any) -> Any:
            x = x.clone()
            found = own(x, *args, **kwargs)
            assert found is x, f"{op.name} in place returns another tensor than it changed"
            return found

        return call

    ours: Any = rebound(method, gt)
    if isinstance(method, partial):
        ours = partial(getattr(gt.nn.functional, method.func.__name__), **method.keywords)
    elif ours is method:
        ours = getattr(gt.Tensor, method.__name__, None)
    if ours is None:
        return [f"GT's tensors have no {method.__name__}"]
    found = []
    for s in samples(op, sample_dtype(op), count):
        if isinstance(s.input, torch.Tensor):
            found.append(_compared(op, s, side, change(rebound(method, torch)), change(ours)))
    return found


def into(op: Any, side: GT, count: int) -> list[str]:
    """The faults of `out=`: the tensors given have to hold the results, and be returned."""
    if not op.supports_out:
        return []

    def write(namespace: Any, call: Callable) -> Callable:
        def written(x: Any, *args: Any, **kwargs: Any) -> Any:
            made = call(x, *args, **kwargs)
            parts = tuple(made) if isinstance(made, (list, tuple)) else (made,)
            out = tuple(namespace.zeros(tuple(p.shape), dtype=p.dtype) for p in parts)
            found = call(x, *args, **kwargs, out=out if isinstance(made, (list, tuple)) else out[0])
            if found is not None:  # PyTorch's split_with_sizes_copy and unbind_copy return nothing with out=
                for given, result in zip(out, leaves(found)):
                    assert given is result, "expected the tensor given as out= to be returned"
            return found if found is not None else [None, *out]

        return written

    found = []
    for s in samples(op, sample_dtype(op), count, requires_grad=False):
        found.append(_compared(op, s, side, write(torch, PyTorch().call(op)), write(gt, side.call(op)), False))
    return found


def dtypes(op: Any, side: GT, count: int) -> list[str]:
    """The faults of the results of every dtype that PyTorch has the op for."""
    found = []
    for dtype in sorted(op.dtypes, key=str):
        try:
            dtype_of(dtype)
        except TypeError:
            continue
        for s in samples(op, dtype, count, requires_grad=False):
            wrong = _judged(op, s, side, False)
            found.append(f"{dtype}: {wrong}" if wrong else "")
    return found


def _judged(op: Any, sample: Any, side: GT, gradients: bool = True) -> str:
    try:
        return judge(op, sample, side, gradients)
    except Unsupported as wrong:
        return f"cannot be handed to GT: {wrong}"


def _compared(op: Any, sample: Any, side: GT, theirs: Callable, ours: Callable, gradients: bool = True) -> str:
    want, random = wanted(op, sample, gradients, theirs)
    try:
        return compare(want, evaluate(side, op, sample, gradients, ours), random)
    except Unsupported as wrong:
        return f"cannot be handed to GT: {wrong}"


FORMS: dict[str, Callable[[Any, GT, int], list[str]]] = {
    "plain": plain,
    "refused": refused,
    "in_place": in_place,
    "out": into,
    "dtypes": dtypes,
    "writes": writes,
}
