"""A row's decomposition as a list of kinds, for engines without a kernel of the row. `row.lower` is called once with stand-ins
that have only a Spec, which record the applied rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gt.ops.rules import axis_of
from gt.ops.table import TABLE, Kind, Row, infer
from gt.spec import DType, Spec


class Unable(AttributeError):
    """The decomposition uses an operation that is no single row."""


@dataclass(frozen=True, slots=True)
class At:
    """An operand: the value numbered `n`, inputs first, then results in order."""

    n: int


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction; `ins` are values or numbers."""

    kind: Kind
    ins: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Steps:
    """A kind decomposed into other kinds. `results` are the values of its results."""

    body: tuple[Step, ...]
    results: tuple[At, ...]

    def bind(self, kernels: list[Callable[..., Any]]) -> Callable[..., Any]:
        """One callable of the kind's operands, made of a kernel for each step."""
        program = [(k, s.ins, len(s.kind.outs) > 1) for k, s in zip(kernels, self.body)]
        results = [o.n for o in self.results]

        def run(*operands: Any) -> Any:
            values = list(operands)
            for kernel, ins, several in program:
                made = kernel(*[values[i.n] if type(i) is At else i for i in ins])
                if several:
                    values.extend(made)
                else:
                    values.append(made)
            return values[results[0]] if len(results) == 1 else tuple(values[n] for n in results)

        return run


class _Recorder:
    def __init__(self, kind: Kind) -> None:
        self.signal, self.precision, self.count = kind.signal, kind.precision, len(kind.ins)
        self.steps: list[Step] = []

    def apply(self, row: Row, operands: tuple, statics: tuple = ()) -> Any:
        ins = tuple(o.at if isinstance(o, (_Tensor, _Number)) else o for o in operands)
        specs = tuple(o.spec if isinstance(o, (_Tensor, _Number)) else type(o) for o in operands)
        kind = infer(row, specs, statics, self.signal, self.precision)
        self.steps.append(Step(kind, ins))
        made = tuple(_Tensor(self, At(self.count + i), s) for i, s in enumerate(kind.outs))
        self.count += len(made)
        return made[0] if len(made) == 1 else made


class _Number:
    """A number that is known only when the kernel runs: it can only be an operand."""

    def __init__(self, at: At, spec: type) -> None:
        self.at, self.spec = at, spec

    def __getattr__(self, name: str) -> Any:
        raise Unable(f"{name} of a number that is known only at run time")


class _Tensor:
    """The operations that a decomposition may apply to a tensor."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: _Recorder, at: At, spec: Spec) -> None:
        self.trace, self.at, self.spec = trace, at, spec

    shape = property(lambda self: self.spec.shape)
    ndim = property(lambda self: self.spec.ndim)
    dtype = property(lambda self: self.spec.dtype)

    def op(self, name: str, *operands: Any, **statics: Any) -> Any:
        row = TABLE[name]
        return self.trace.apply(row, (self, *operands), tuple(statics[n] for n in row.statics))

    def __getattr__(self, name: str) -> Any:
        row = TABLE.get(name)
        if row is None or not row.pointwise or row.statics:
            raise Unable(f"no single row is {name}")
        return lambda *rest: self.op(name, *rest)

    def __neg__(self) -> Any:
        return self.op("neg")

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __rtruediv__(self, other: Any) -> Any:
        return self.op("reciprocal") * other

    def pick(self, a: Any, b: Any) -> Any:
        return self.op("where", a, b)

    def detach(self) -> _Tensor:
        return self

    def to(self, dtype: DType) -> _Tensor:
        return self if dtype is self.spec.dtype else self.op("cast", dtype=dtype.code)

    def reshape(self, *shape: Any) -> _Tensor:
        want = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if -1 in want:
            rest = 1
            for d in want:
                rest *= d if d != -1 else 1
            want = tuple(self.spec.numel // rest if d == -1 else d for d in want)
        return self.op("reshape", shape=want)

    def unsqueeze(self, axis: int) -> _Tensor:
        at = axis_of(axis, self.ndim + 1)
        return self.reshape(*self.shape[:at], 1, *self.shape[at:])

    @property
    def mT(self) -> _Tensor:
        return self.op("permute", axes=(*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    def sum_to(self, shape: tuple[int, ...]) -> _Tensor:
        lead = self.ndim - len(shape)
        axes = tuple(range(lead)) + tuple(lead + i for i, d in enumerate(shape) if d == 1 and self.shape[lead + i] != 1)
        out = self.op("sum", axis=axes, keepdims=False) if axes else self
        return out if out.shape == shape else out.reshape(shape)


def _reduction(name: str) -> Callable[..., Any]:
    def reduce(self: _Tensor, axis: Any = None, keepdims: bool = False) -> Any:
        axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        return self.op(name, axis=tuple(axis_of(a, self.ndim) for a in axes), keepdims=keepdims)

    return reduce


def _operator(name: str) -> Callable[..., Any]:
    return lambda self, other: self.op(name, other)


for _name in ("sum", "mean", "amax", "amin", "logsumexp"):
    setattr(_Tensor, _name, _reduction(_name))
for _name, _row in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow", "matmul": "matmul",
                    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "and": "bitwise_and",
                    "or": "bitwise_or"}.items():  # fmt: skip
    setattr(_Tensor, f"__{_name}__", _operator(_row))
_Tensor.__radd__ = _operator("add")  # type: ignore[attr-defined]
_Tensor.__rmul__ = _operator("mul")  # type: ignore[attr-defined]


def lowered(kind: Kind) -> Steps | None:
    """The decomposition of a kind; None if its row has none, if it cannot be written in single rows, or if it ignores an
    operand: it recomputes that from the others, which is correct only for matching operands."""
    if kind.row.lower is None:
        return None
    trace = _Recorder(kind)
    operands = [_Tensor(trace, At(i), s) if isinstance(s, Spec) else _Number(At(i), s) for i, s in enumerate(kind.ins)]
    try:
        made = kind.row.lower(*operands, **kind.settings)
    except (Unable, TypeError):  # a number that is not known yet was used in Python's own arithmetic
        return None
    results = made if isinstance(made, tuple) else (made,)
    cast = [r.to(s.dtype) for r, s in zip(results, kind.outs)]
    used = {i.n for step in trace.steps for i in step.ins if isinstance(i, At)}
    if any(r.shape != s.shape for r, s in zip(cast, kind.outs)) or not used >= set(range(len(kind.ins))):
        return None
    return Steps(tuple(trace.steps), tuple(r.at for r in cast))
