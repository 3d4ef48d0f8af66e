"""Random programs of views and writes, for GT and PyTorch alike: a step is a name and numbers, which mean the same to both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

Step = tuple[str, int, int, int]  # the action; the tensor; two numbers that choose among its variants


def _axis(x: Any, n: int) -> int:
    return n % x.ndim


def _slice(x: Any, a: int, b: int) -> Any:
    axis = _axis(x, a)
    start = b % (x.shape[axis] + 1)
    return x[(slice(None),) * axis + (slice(start, None, 1 + a % 2),)]


def _split_shape(x: Any, a: int) -> tuple[int, ...]:
    n = int(np.prod(x.shape))
    shapes = [(n,), (-1, 1), (1, n)] + [(k, n // k) for k in (2, 3, 4) if n % k == 0 and n]
    return shapes[a % len(shapes)] if n else tuple(x.shape)


VIEWS: dict[str, Callable[[Any, int, int], Any]] = {
    "row": lambda x, a, b: x[a % x.shape[0]],
    "slice": _slice,
    "new axis": lambda x, a, b: x[..., None],
    "select": lambda x, a, b: x.select(_axis(x, a), b % x.shape[_axis(x, a)]),
    "narrow": lambda x, a, b: x.narrow(_axis(x, a), 0, b % (x.shape[_axis(x, a)] + 1)),
    "t": lambda x, a, b: x.t(),
    "transpose": lambda x, a, b: x.transpose(_axis(x, a), _axis(x, b)),
    "movedim": lambda x, a, b: x.movedim(_axis(x, a), _axis(x, b)),
    "view": lambda x, a, b: x.view(_split_shape(x, a)),
    "reshape": lambda x, a, b: x.reshape(_split_shape(x, a)),
    "flatten": lambda x, a, b: x.flatten(),
    "unsqueeze": lambda x, a, b: x.unsqueeze(a % (x.ndim + 1)),
    "squeeze": lambda x, a, b: x.squeeze(),
    "expand": lambda x, a, b: x.expand(2, *x.shape),
    "diagonal": lambda x, a, b: x.diagonal(a % 3 - 1, 0, 1),
    "unfold": lambda x, a, b: x.unfold(_axis(x, a), 1 + b % 2, 2),
    "windows": lambda x, a, b: x.unfold(_axis(x, a), 2, 1),
    "whole": lambda x, a, b: x[:],
    "chunk": lambda x, a, b: x.chunk(2, _axis(x, a))[0],
    "split": lambda x, a, b: x.split(2, _axis(x, a))[-1],
    "unbind": lambda x, a, b: x.unbind(_axis(x, a))[0],
    "iterate": lambda x, a, b: list(x)[-1],
    "contiguous": lambda x, a, b: x.contiguous(),
    "detach": lambda x, a, b: x.detach(),
    "data": lambda x, a, b: x.data,
    "all": lambda x, a, b: x.view_as(x),
}


def _values(m: Any, x: Any, seed: int) -> Any:
    """Numbers of a tensor's shape that are the same for both."""
    return m.tensor(np.random.default_rng(seed).integers(-8, 8, tuple(x.shape)).astype("f4"))


def _apart(x: Any) -> Any:
    """The tensor, unless elements stand in it several times other than by `expand`, as in windows that overlap: their values
    then depend on the order in which PyTorch happens to write."""
    lying = [(d, s) for d, s in zip(x.shape, x.stride()) if s]
    places = np.zeros((), int)
    for d, s in lying:
        places = places[..., None] + np.arange(d) * s
    if len(np.unique(places)) < places.size:
        raise ValueError("elements overlap")
    return x


def _put(x: Any, index: Any, value: Any) -> None:
    x[index] = value


def _add(x: Any, value: Any) -> None:
    x += value


WRITES: dict[str, Callable[[Any, Any, Any, int, int], Any]] = {
    "fill": lambda m, x, w, a, b: x.fill_(a),
    "zero": lambda m, x, w, a, b: x.zero_(),
    "add": lambda m, x, w, a, b: _apart(x).add_(a),
    "scale": lambda m, x, w, a, b: _apart(x).mul_(0.5),
    "copy": lambda m, x, w, a, b: _apart(x).copy_(_values(m, x, a)),
    "add values": lambda m, x, w, a, b: _add(_apart(x), _values(m, x, a)),
    "add leaf": lambda m, x, w, a, b: _apart(x).add_(w.sum()),
    "put": lambda m, x, w, a, b: _put(x, a % x.shape[0], b),
    "put slice": lambda m, x, w, a, b: _put(x, (..., slice(0, 1 + a % 2)), b),
    "put leaf": lambda m, x, w, a, b: _put(x, (..., 0), w[0, 0] * 2),
    "put places": lambda m, x, w, a, b: _put(x, m.tensor([0, 5 % x.shape[0]]), float(b)),
    "put by mask": lambda m, x, w, a, b: _put(x, x.detach() > a, float(b)),
    "fill places": lambda m, x, w, a, b: x.index_fill_(_axis(x, a), m.tensor([0]), float(b)),
    "mask": lambda m, x, w, a, b: x.masked_fill_(x.detach() > 0, float(b)),
    "clamp": lambda m, x, w, a, b: _apart(x).clamp_(-2.0, 2.0),
    "squeeze": lambda m, x, w, a, b: x.squeeze_(),
    "unsqueeze": lambda m, x, w, a, b: x.unsqueeze_(a % (x.ndim + 1)),
    "transpose": lambda m, x, w, a, b: x.transpose_(_axis(x, a), _axis(x, b)),
}


# Changes of shape alone: in no_grad() PyTorch has no gradient of later nodes of the tape.
SHAPES = {"squeeze", "unsqueeze", "transpose"}


def steps(writes_first: bool = False) -> st.SearchStrategy[list[Step]]:
    number = st.integers(0, 7)
    view = st.tuples(st.sampled_from([f"view {n}" for n in sorted(VIEWS)]), number, number, number)
    write = st.tuples(st.sampled_from(sorted(WRITES)), number, number, number)
    quiet = st.tuples(st.sampled_from([f"no_grad {n}" for n in sorted(set(WRITES) - SHAPES)]), number, number, number)
    return st.lists(st.one_of(view, view, write, quiet), min_size=2, max_size=9)


class Machine:
    """A program under way in one of the two libraries: `m` is the library."""

    def __init__(self, m: Any, grad: bool) -> None:
        self.m = m
        data = np.arange(24, dtype="f4").reshape(4, 6) - 10
        self.w = m.tensor(data, requires_grad=grad)
        self.tensors: list[Any] = [self.w * 2 if grad else self.w]

    def do(self, step: Step) -> str:
        """Do a step; the name of the error it raised, if it did."""
        name, which, a, b = step
        x = self.tensors[which % len(self.tensors)]
        try:
            if name.startswith("view "):
                name = name.removeprefix("view ")
                self.tensors.append(VIEWS[name](x, a, b))
            elif name.startswith("no_grad "):
                with self.m.no_grad():
                    WRITES[name.removeprefix("no_grad ")](self.m, x, self.w, a, b)
            else:
                WRITES[name](self.m, x, self.w, a, b)
        except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError) as wrong:
            return f"{type(wrong).__name__}: {wrong}"
        return ""

    def loss(self) -> Any:
        """All that the tensors are, each element with a weight of its own."""
        total = self.w.sum() * 0
        for i, x in enumerate(self.tensors):
            total = total + (x * (i + 1) * (_values(self.m, x, i) + 9)).sum()
        return total
