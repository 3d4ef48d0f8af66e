"""Printing tensors as PyTorch does. Of a large tensor, only the printed corners are read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.autograd import Port, Tensor
from gt.client.functions.join import cat
from gt.spec import bool_, complex64, float32, int64

EDGE, THRESHOLD, PRECISION, WIDTH = 3, 1000.0, 4, 80
EXPONENT: bool | None = None  # whether floats are printed with an exponent; None: automatic


def show(t: Tensor) -> str:
    spec = t.handle.spec
    large = spec.numel > THRESHOLD
    values = (_corners(t) if large else t).handle.numpy()
    write = _writer(values)
    if spec.numel == 0:
        body = "[]"
    elif not spec.shape:
        body = write(values.item())
    else:
        body = _lines(values, spec.shape, write, len("tensor("), large)
    tail = []
    if spec.numel == 0 and spec.shape != (0,):
        tail.append(f"size={spec.shape}")
    if spec.dtype not in (float32, complex64, int64, bool_) or (spec.numel == 0 and spec.dtype is not float32):
        tail.append(f"dtype={spec.dtype}")
    if t.node is not None:
        node = t.node.node if isinstance(t.node, Port) else t.node
        tail.append(f"grad_fn=<{node.name}>")
    elif t.requires_grad:
        tail.append("requires_grad=True")
    return _joined(f"tensor({body}", tail)


def _joined(text: str, tail: list[str]) -> str:
    """The text after the numbers, on a new line if it does not fit."""
    last = len(text) - text.rfind("\n") - 1
    for part in tail:
        if last + len(part) + 2 > WIDTH:
            text += ",\n       " + part
            last = 7 + len(part)
        else:
            text += ", " + part
            last += 2 + len(part)
    return text + ")"


def _corners(t: Tensor) -> Tensor:
    t = t.detach()
    for axis, d in enumerate(t.handle.spec.shape):
        if d > 2 * EDGE:
            t = cat([t.narrow(axis, 0, EDGE), t.narrow(axis, d - EDGE, EDGE)], axis)
    return t


def _writer(values: np.ndarray) -> Any:
    """The format of these numbers, with a common width."""
    if values.dtype.kind == "b":
        width = max((len(str(bool(v))) for v in values.flat), default=0)
        return lambda v: str(bool(v)).rjust(width)
    if values.dtype.kind in "iu":
        width = max((len(str(int(v))) for v in values.flat), default=0)
        return lambda v: str(int(v)).rjust(width)
    if values.dtype.kind == "c":
        real, imag = _writer(values.real), _writer(values.imag)
        return lambda v: f"{real(v.real)}{_signed(imag(v.imag).lstrip())}j"
    flat = values.astype(np.float64).reshape(-1)
    flat = flat[np.isfinite(flat) & (flat != 0)]  # zeros, infinities and nans do not decide the format
    form = _float_form(np.abs(flat))
    width = max((len(_float_text(float(v), form)) for v in flat), default=1)
    return lambda v: _float_text(float(v), form).rjust(width)


def _signed(text: str) -> str:
    return text if text[0] in "+-" else f"+{text}"


def _float_form(sizes: np.ndarray) -> str:
    """Integral floats end in a dot; a very large or very small range is printed with an exponent."""
    if not len(sizes):
        return "whole"
    high, low = float(sizes.max()), float(sizes.min())
    if EXPONENT is not None:
        whole = not EXPONENT and bool(np.all(sizes == np.ceil(sizes)))
        return "whole" if whole else f".{PRECISION}{'e' if EXPONENT else 'f'}"
    if bool(np.all(sizes == np.ceil(sizes))):
        return f".{PRECISION}e" if high / low > 1000.0 or high > 1.0e8 else "whole"
    if high / low > 1000.0 or high > 1.0e8 or low < 1.0e-4:
        return f".{PRECISION}e"
    return f".{PRECISION}f"


def _float_text(v: float, form: str) -> str:
    if not math.isfinite(v):
        return str(v)
    return f"{v:.0f}." if form == "whole" else format(v, form)


def _lines(values: np.ndarray, shape: tuple[int, ...], write: Any, indent: int, large: bool) -> str:
    """Nested brackets, with `...` for the omitted part of an axis."""
    cut = large and shape[0] > 2 * EDGE
    if len(shape) == 1:
        words = [write(v) for v in values.tolist()]
        if cut:
            words = [*words[:EDGE], " ...", *words[-EDGE:]]
        per_line = max(1, (WIDTH - indent) // (len(words[0]) + 2)) if words else 1
        rows = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(rows) + "]"
    parts = [_lines(v, shape[1:], write, indent + 1, large) for v in values]
    if cut:
        parts = [*parts[:EDGE], "...", *parts[-EDGE:]]
    return "[" + ("," + "\n" * (len(shape) - 1) + " " * (indent + 1)).join(parts) + "]"
