"""Writes between an op and its gradient: PyTorch refuses a gradient that reads a tensor which was changed in place since, and
which tensors those are is a fact of each op. Each tensor among a sample's inputs and results is set to zero once before
`backward()`; GT has to raise where PyTorch raises, and to give its gradients where it does not."""

from __future__ import annotations

import warnings
from typing import Any

from tests.ops.opinfo import (
    GRADIENT,
    GT,
    PyTorch,
    Unsupported,
    arguments,
    close,
    leaves,
    mapped,
    rebound,
    sample_dtype,
    wanted,
    weights,
)
from tests.ops.opinfo import samples as samples_of

MODIFIED = "modified by an inplace operation"


def _named(value: Any, kind: Any, name: str) -> list[tuple[str, Any]]:
    """The tensors in nested lists, each with the place it stands at."""
    if isinstance(value, (list, tuple)):
        return [found for i, v in enumerate(value) for found in _named(v, kind, f"{name}[{i}]")]
    if isinstance(value, dict):
        return [found for k, v in value.items() for found in _named(v, kind, str(k))]
    return [(name, value)] if isinstance(value, kind) else []


def _between(side: PyTorch, op: Any, sample: Any, at: int | None) -> tuple[list[str], Any]:
    """The names of the tensors that can be written to, and the outcome of a write to the one numbered `at` (None: of no write):
    gradients, or the error."""
    given, args, kwargs, tensors = arguments(side, sample)
    bare = tensors[:]
    given, args, kwargs = mapped((given, args, kwargs), lambda v: v * 1 if any(v is t for t in bare) else v)
    result = side.call(op)(given, *args, **kwargs)
    process = getattr(sample, "output_process_fn_grad", None)
    results = leaves(rebound(process, side.namespace)(result) if process is not None else result)
    taped = [r for r in results if isinstance(r, side.tensor) and r.requires_grad]
    places = _named(given, side.tensor, "input") + _named(args, side.tensor, "args") + _named(kwargs, side.tensor, "")
    places += _named(result, side.tensor, "result")
    names = [name for name, _ in places]
    if not taped or not tensors:
        return [], None
    if any(type(r).__name__ == "SparseTensor" for r in taped):
        raise Unsupported("sparse results")
    terms = [(r.real if r.is_complex() else r) * side.put(weights(side.read(r)).real) for r in taped]
    total = sum((t.sum() for t in terms[1:]), terms[0].sum())
    try:
        if at is not None:
            with side.namespace.no_grad():
                places[at][1].zero_()
        total.backward()
    except RuntimeError as wrong:
        return names, "modified" if MODIFIED in str(wrong) else f"{type(wrong).__name__}"
    return names, [None if t.grad is None else side.read(t.grad) for t in tensors]


def _difference(theirs: Any, ours: Any, values: bool) -> str:
    if isinstance(theirs, str) or isinstance(ours, str):
        if theirs == ours:
            return ""
        return f"{ours if isinstance(ours, str) else 'accepted'}, PyTorch {theirs if isinstance(theirs, str) else 'goes on'}"
    for f, w in zip(ours, theirs):
        if f is not None and w is not None and (wrong := close(f, w, GRADIENT, values)):
            return f"another gradient: {wrong}"
    return ""


def writes(op: Any, side: GT, count: int) -> list[str]:
    """The fault of each write to a tensor of the first samples."""
    found: list[str] = []
    dtype = sample_dtype(op)
    if not op.supports_autograd or not (dtype.is_floating_point or dtype.is_complex):
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples_of(op, dtype, count)):
            want, random = wanted(op, sample)
            if want.error is not None:  # PyTorch refuses the sample, or its copy
                continue
            try:
                names, _ = _between(PyTorch(), op, sample, None)
                for at, name in enumerate(names):
                    theirs = _between(PyTorch(), op, sample, at)[1]
                    wrong = _difference(theirs, _between(side, op, sample, at)[1], not random)
                    found.append(f"{name} of sample {number}: {wrong}" if wrong else "")
            except Unsupported:
                continue
    return found
