"""The op table: one row states all that is true of an op. Rows are added by `op(...)` in the family files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from gt.errors import ArgumentTypeError, NotForComplex, ProtocolError, of_arguments
from gt.parameters import parameters
from gt.spec import DTYPES, DType, Placement, Shard, Spec, bool_, float32, int64

# An operand is known by its Spec, or, where a Python number stands in a tensor's place, by the number's type.
Operand = Any
_NUMBERS = (bool, int, float)
Rule = tuple[tuple[Placement, ...], tuple[Placement, ...]]  # placements of the inputs, placements of the outputs
Try = tuple[tuple[Any, ...], dict[str, Any]]  # sample operands and statics


@dataclass(frozen=True, slots=True)
class Values:
    """A sample input whose values matter: all in [low, high), or, with `positive`, symmetric matrices that have a root."""

    spec: Spec
    low: float = -2.0
    high: float = 2.0
    positive: bool = False


@dataclass(frozen=True, slots=True)
class Alias:
    """What makes an op a view, whose result shares memory with its first operand as users see it.

    `write(base, piece, *numbers, **statics)`, written in tensors, is the base with `piece` in place of the view (None: elements
    of the base may stand in the view several times). `strides(shape, strides, **statics)` gives the distances of elements in
    the view, given the base's shape and distances; None where PyTorch copies instead. `offset(base's, strides, *numbers,
    **statics)` is where its first element lies, given where the base's does and the base's distances (None: in the same
    place)."""

    strides: Callable[..., tuple[int, ...] | None]
    write: Callable[..., Any] | None = None
    offset: Callable[..., int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """All that is true of one op.

    `shape(*operands, **statics)` gives the output's Spec, or a tuple of Specs. `kernel(xp, *arrays, **statics)` computes
    over an array namespace with NumPy's names; its keyword-only arguments are the op's statics, in wire order.
    `grad` has a function for each input, written in tensors and run only where that input wants its gradient (None: it has
    none). Its parameters are chosen by name, and naming a value is what keeps it alive: `g` the output's gradient, `y` the
    output, `a`, `b`, `c`, ... the inputs (one that it does not use is named where PyTorch saves it, so that writes to it are
    refused), `sa`, `sb`, ... only their Specs, and the statics. Sums over broadcast axes and casts back to the input's dtype
    are the tape's business. Where the number of inputs varies or outputs are several,
    `grad` is one function `(gs, ys, inputs, **statics)` that gives a sequence of gradients, `keep` saying whether it reads
    "inputs" (or the "rest" of them, after the first), "outputs" (or of them only the "saved" ones) or only Specs. Gradients
    use what users know of tensors; `t.op("name", *operands, **statics)` applies any row, and `c.pick(a, b)` is `a` where `c`
    holds.
    `shard(kind)` lists placements that need no communication, for one mesh dimension; all axes a rule cuts are of one size,
    and a piece may be empty unless a result is then a term of a max or min.
    A piece has the whole's statics, save `shape`, `start` and what `cut(kind, rule, first, size)` says, which may
    be of another `row`.
    `alias` says that the op is a view.
    `lower(*tensors, **statics)` says the same in other rows; where a row has no `grad` (those named `<op>_grad`), that is
    also how it is differentiated.
    `tries` are sample inputs: a list of (operands, statics), an operand being a Spec, Values, a number or a number's type.
    """

    name: str
    shape: Callable[..., Any]
    kernel: Callable[..., Any] | None
    family: str
    grad: tuple[Callable[..., Any] | None, ...] | Callable[..., Any] | None = None
    keep: str = ""
    shard: Callable[[Kind], list[Rule]] | None = None
    cut: Callable[[Kind, Rule, int, int], dict[str, Any]] | None = None
    lower: Callable[..., Any] | None = None
    tries: tuple[Any, ...] = ()
    pointwise: bool = False
    view: bool = False  # the result may share memory with an input, on a worker
    alias: Alias | None = None
    random: bool = False
    obeys_signal: bool = False  # its result lies as its signal says, whatever that moves; others only lean that way
    updates: bool = False  # its results take the place of its first input, and lie as that does
    limits: Callable[[Kind], tuple[tuple[int, int, int], ...]] | None = None  # (operand, least, most) of numbers on which the
    # shape of the result depends: outside of these an instruction has none
    collective: bool = False  # workers exchange bytes in it; only the dispatcher writes such instructions
    saved: int = 0  # this many last outputs are there for the gradient: one that nobody used has None for its own, not zeros
    unchecked: str = (
        ""  # of what its gradient reads ("a b y", of several results "y0"), what PyTorch's does not: written over in
    )
    # place, it is no error
    complex: str = ""  # takes complex numbers; its gradient is "analytic": as for real ones, read at the conjugates; or "own"
    autocast: str = ""  # under autocast its floats become "low" (the dtype asked for) or "high" (float32)
    blas: bool = False  # a matrix product that BLAS computes as it is
    compute_seconds: Callable[[Kind], float] | None = None  # estimated on one core of a CPU, beyond the time to read and write
    # its elements (gt/ops/estimate.py)
    sequential_steps: Callable[[Kind], int] | None = None  # its parts that run one after another, each shared by all threads
    plain_name: str = ""  # the name by which a custom backend is asked for it, where it is no plain elementwise op or reduction
    statics: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"op {self.name}"

    @property
    def creates(self) -> bool:
        """Whether it makes a tensor of numbers; of a tensor that it is given, it uses the shape alone."""
        return self.family == "create"

    @property
    def moves(self) -> bool:
        """Whether it only lays out the elements of its input anew."""
        return self.family == "movement"

    @property
    def reduces(self) -> bool:
        return self.family == "reduce"

    @property
    def group(self) -> str:
        """What those who watch call it: a group of families, or how it moves bytes."""
        return "transfer" if self.loads else GROUPS.get(self.family, self.family)

    @property
    def is_gradient(self) -> bool:
        """Whether it is there for the gradient of another row."""
        return self.name.endswith("_grad")

    @property
    def loads(self) -> bool:
        """Whether its bytes come from the client."""
        return self.kernel is None and not self.collective


TABLE: dict[str, Row] = {}
GROUPS = {
    family: group
    for group, families in {
        "matmul": "products sparse",
        "conv": "conv pool",
        "attention": "attention",
        "elementwise": "elementwise math activation bits special bessel complex_numbers",
        "reduce": "reduce norm channelnorm loss scan sort",
        "movement": "movement index index_arrays scatter",
        "create": "create random",
        "update": "update",
        "linalg": "linalg factor lu fourier",
        "collective": "collective",
    }.items()
    for family in families.split()
}


def op(name: str, *, shape: Callable[..., Any], kernel: Callable[..., Any] | None, **columns: Any) -> Row:
    """Add a row. The family is the file that calls."""
    assert name not in TABLE, f"op {name} stands twice in the table"
    family = sys._getframe(1).f_globals["__name__"].rsplit(".", 1)[-1]
    names: tuple[str, ...] = ()
    if kernel is not None:
        found = parameters(kernel)
        names, columns["defaults"] = found.keyword_only, found.defaults
    if "statics" in columns:
        names = tuple(columns.pop("statics"))
    row = Row(name=name, shape=shape, kernel=kernel, family=family, statics=names, **columns)
    TABLE[name] = row
    return row


class Kind:
    """One way an op is used: its operands' specs, statics and signal. Interned by each side; instructions name it by number.

    An instruction is `(kind, first output id, *operands)`, an operand being a tensor's id or, where `ins` has a type, a number.
    """

    __slots__ = ("row", "ins", "statics", "outs", "signal", "tensor_operands", "settings", "form")
    form: Any  # where operands stand in an instruction: `Form.of` keeps it here

    def __init__(
        self, row: Row, ins: tuple[Operand, ...], statics: tuple[Any, ...], outs: tuple[Spec, ...], signal: str
    ) -> None:
        self.row, self.ins, self.statics, self.outs, self.signal = row, ins, statics, outs, signal
        self.tensor_operands = tuple(i for i, s in enumerate(ins) if type(s) is Spec)
        self.settings = dict(zip(row.statics, statics))

    def __repr__(self) -> str:
        ins = ", ".join(f"{s.dtype.name}{list(s.shape)}" if type(s) is Spec else s.__name__ for s in self.ins)
        return f"{self.row.name}({ins})" + "".join(f" {k}={v}" for k, v in self.settings.items())

    def like(self, ins: tuple[Operand, ...], **changed: Any) -> Kind:
        """The same op on other operands, as a shard of this one needs it."""
        settings = {**self.settings, **changed}
        return infer(self.row, ins, tuple(settings[n] for n in self.row.statics), self.signal)

    def piece(self, rule: Rule, first: int, size: int) -> Kind:
        """This kind on elements `first` to `first + size` of every axis that the rule cuts."""
        changed: dict[str, Any] = self.row.cut(self, rule, first, size) if self.row.cut else {}
        for name, value in (("shape", size), ("start", first)):
            if name in self.settings and isinstance(to := rule[1][0], Shard):
                old = self.settings[name]
                there = value if name == "shape" else old[to.axis] + value
                changed[name] = (*old[: to.axis], there, *old[to.axis + 1 :])
        ins = tuple(
            Spec((*s.shape[: p.axis], size, *s.shape[p.axis + 1 :]), s.dtype)
            if isinstance(s, Spec) and isinstance(p, Shard) else s
            for s, p in zip(self.ins, rule[0])
        )  # fmt: skip
        if "row" in changed:  # a piece of it is a use of another op
            other = TABLE[changed.pop("row")]
            settings = {**self.settings, **changed}
            return infer(other, ins, tuple(settings[n] for n in other.statics), self.signal)
        return self.like(ins, **changed)

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.row, self.ins, self.statics, self.signal)


def infer(row: Row, ins: tuple[Operand, ...], statics: tuple[Any, ...], signal: str = "") -> Kind:
    """The kind of an op on these operands; raises what the user should read when they do not fit."""
    if not row.complex and not row.collective and any(type(s) is Spec and s.dtype.rank == 3 for s in ins):
        raise NotForComplex(f"{row.name} is not defined for complex tensors: take .real, .imag or .abs() first")
    if any(type(s) is not Spec and s not in _NUMBERS for s in ins):
        kinds = ", ".join(s.__name__ for s in ins if type(s) is not Spec)
        raise ArgumentTypeError(f"{row.name} takes bool, int and float for numbers, not {kinds}: make a tensor of it")
    try:
        outs = row.shape(*ins, **dict(zip(row.statics, statics)))
    except (ValueError, TypeError, IndexError) as wrong:
        raise of_arguments(wrong).with_traceback(wrong.__traceback__) from None
    return Kind(row, ins, statics, outs if type(outs) is tuple else (outs,), signal)


@cache
def arity(row: Row) -> tuple[int, int | None]:
    """How many operands an op has, at least and at most (None: any number), as its kernel says."""
    if row.kernel is None:
        return 0, None
    found = parameters(row.kernel)
    named = sum(name not in found.defaults for name in found.positional[1:])  # the first is the array namespace
    return named, None if found.variadic else named


def row(name: str) -> Row:
    try:
        return TABLE[name]
    except KeyError:
        raise ProtocolError(f"no op {name!r} in the table") from None


# On the wire a spec is (dtype code, *shape) and a number's type (-1,), (-2,) or (-3,).
WireSpec = tuple[int, ...]


def spec_out(s: Operand) -> WireSpec:
    return (s.dtype.code, *s.shape) if isinstance(s, Spec) else (-1 - _NUMBERS.index(s),)


@lru_cache(1 << 11)
def spec_in(w: WireSpec) -> Operand:
    if not w or not -3 <= w[0] < len(DTYPES) or any(d < 0 for d in w[1:]):
        raise ProtocolError(f"no spec is written {w}")
    return Spec(tuple(w[1:]), DTYPES[w[0]]) if w[0] >= 0 else _NUMBERS[-1 - w[0]]


def freeze(value: Any) -> Any:
    """Lists as tuples, so that what came over the wire equals what was sent."""
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def dtype_of_operand(s: Operand) -> DType:
    if isinstance(s, Spec):
        return s.dtype
    return bool_ if s is bool else int64 if s is int else float32


def rows(family: str | None = None) -> Iterator[Row]:
    return (r for r in TABLE.values() if family is None or r.family == family)
