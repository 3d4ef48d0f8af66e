"""The op table: one row has all facts about an op. The family files add rows by `op(...)`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from gt.errors import ArgumentTypeError, NotForComplex, ProtocolError, of_arguments
from gt.parameters import parameters
from gt.spec import DTYPES, DType, Placement, Shard, Spec, bool_, complex64, float32, int64

# An operand is described by its Spec, or, if it is a Python number, by the number's type.
Operand = Any
_NUMBERS = (bool, int, float)
SINGLE = (float32, complex64)  # dtypes of products that have a precision
HIGHEST = "highest"
PRECISIONS = (HIGHEST, "high", "medium")
Rule = tuple[tuple[Placement, ...], tuple[Placement, ...]]  # placements of the inputs, placements of the outputs
Try = tuple[tuple[Any, ...], dict[str, Any]]  # sample operands and statics


@dataclass(frozen=True, slots=True)
class Values:
    """A sample input with given values: all in [low, high), or, with `positive`, positive-definite matrices."""

    spec: Spec
    low: float = -2.0
    high: float = 2.0
    positive: bool = False


@dataclass(frozen=True, slots=True)
class Alias:
    """Facts about an op that is a view: for users its result shares memory with its first operand.

    `write(base, piece, *numbers, **statics)`, written in tensors, is the base with `piece` in place of the view (None: the view
    may contain elements of the base several times). `strides(shape, strides, **statics)` gives the strides of the view from the
    base's shape and strides; None if PyTorch copies instead. `offset(base's, strides, *numbers, **statics)` is the offset of
    the view's first element, from the base's offset and strides (None: the same offset)."""

    strides: Callable[..., tuple[int, ...] | None]
    write: Callable[..., Any] | None = None
    offset: Callable[..., int] | None = None


@dataclass(frozen=True, slots=True)
class PieceWrite:
    """Facts about an op that writes its first operand into zeros, at places that its numbers say: `places(kind, numbers)` are
    the indices along each axis, `put` names the row that writes it into another tensor instead, with the same operands behind
    that, `join` the row that makes a whole of pieces along an axis, `form` the one that gives a piece its missing axes."""

    places: Callable[[Kind, tuple[Any, ...]], tuple[range, ...]]
    put: str
    join: str
    form: str


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """All facts about one op.

    `shape(*operands, **statics)` gives the output's Spec, or a tuple of Specs. `kernel(xp, *arrays, **statics)` computes
    over an array namespace with NumPy's names; its keyword-only arguments are the op's statics, in wire order.
    `grad` has a function for each input, written in tensors and called only if that input requires its gradient (None: it has
    none). Its parameters are passed by name, and a named value is kept alive: `g` the output's gradient, `y` the output, `a`,
    `b`, `c`, ... the inputs (an unused one is named if PyTorch saves it, so that writes to it are refused), `sa`, `sb`, ...
    only their Specs, and the statics. The tape sums over broadcast axes and casts to the input's dtype. If the number of inputs
    varies or there are several outputs, `grad` is one function `(gs, ys, inputs, **statics)` that gives a sequence of
    gradients, and `keep` names the values that it reads: "inputs" (or the "rest" of them, after the first), "outputs" (or only
    the "saved" ones); "" for Specs alone. Gradients use methods of tensors; `t.op("name", *operands, **statics)` applies any
    row, and `c.pick(a, b)` is `a` where `c` is true.
    `shard(kind)` lists placements without communication, for one mesh dimension; all axes that a rule shards have one size, and
    a piece may be empty unless a result is then a partial max or min.
    A piece has the statics of the whole, except `shape`, `start` and the statics that `cut(kind, rule, first, size)` gives,
    which may also name another `row`.
    `alias` is set if the op is a view.
    `lower(*tensors, **statics)` is the same op in other rows; a row without `grad` (those named `<op>_grad`) is differentiated
    by it.
    `tries` are sample inputs: a list of (operands, statics); an operand is a Spec, Values, a number or a number's type.
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
    obeys_signal: bool = False  # its result has the placement of its signal in any case; for other ops it is a preference
    updates: bool = False  # its results replace its first input and have its placement
    reads: int = 1  # of an update: its tensors after the first that it only reads (a gradient); it may overwrite the others
    limits: Callable[[Kind], tuple[tuple[int, int, int], ...]] | None = None  # (operand, least, most) of numbers that
    # determine the shape of the result: an instruction with others is invalid
    collective: bool = False  # workers exchange bytes; only the dispatcher writes such instructions
    separable: bool = False  # of several tensors, its results are those of each alone
    saved: int = 0  # number of last outputs that only the gradient reads: unused ones have None for their gradient, not zeros
    unchecked: str = ""  # values that its gradient reads and PyTorch's does not ("a b y", of several results "y0"): in-place
    # writes to them are no error
    complex: str = ""  # takes complex numbers; its gradient is "analytic": as for real ones, at the conjugates; or "own"
    autocast: str = ""  # under autocast its floats become "low" (the requested dtype) or "high" (float32)
    adds: bool = False  # it is the sum of its two operands
    piece: PieceWrite | None = None
    of_sum: str = ""  # the row that takes two tensors, whose sum is its first operand here, and returns that before its results
    plus: str = ""  # the row that takes another tensor before its operands, and adds it to its first result
    images: str = ""  # of (batch, channels, height, width): its fast kernels want the channels "last", or "first"
    blas: bool = False  # a matrix product that one call of BLAS computes
    products: bool = False  # it multiplies matrices, float32 ones in the precision of `gt.set_float32_matmul_precision`
    compute_seconds: Callable[[Kind], float] | None = None  # estimated on one core of a CPU, beyond the time to read and write
    # its elements (gt/ops/estimate.py)
    sequential_steps: Callable[[Kind], int] | None = None  # its parts that run one after another, each shared by all threads
    plain_name: str = ""  # its name for custom backends, if it is neither elementwise nor a reduction
    statics: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"op {self.name}"

    @property
    def creates(self) -> bool:
        """Whether it creates a tensor; it reads only the shape of a tensor operand."""
        return self.family == "create"

    @property
    def moves(self) -> bool:
        """Whether it only moves the elements of its input."""
        return self.family == "movement"

    @property
    def reduces(self) -> bool:
        return self.family == "reduce"

    @property
    def group(self) -> str:
        """The group of ops for observers: a group of families, or how it moves bytes."""
        return "transfer" if self.loads else GROUPS.get(self.family, self.family)

    @property
    def is_gradient(self) -> bool:
        """Whether it computes the gradient of another row."""
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
        "reduce": "reduce norm channelnorm histograms loss ctc scan sort",
        "movement": "movement index index_arrays scatter",
        "create": "create random",
        "update": "update",
        "linalg": "linalg factor lu fourier",
        "collective": "collective",
    }.items()
    for family in families.split()
}


def op(name: str, *, shape: Callable[..., Any], kernel: Callable[..., Any] | None, **columns: Any) -> Row:
    """Add a row. Its family is the calling file."""
    assert name not in TABLE, f"op {name} is defined twice"
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
    """An op with its operands' specs, statics, signal and, if it multiplies float32 matrices, precision ("" is the highest).
    Each process interns kinds; instructions contain their number.

    An instruction is `(kind, *result ids, *operands)`; an operand is a tensor's id or, where `ins` has a type, a number.
    """

    __slots__ = ("row", "ins", "statics", "outs", "signal", "tensor_operands", "settings", "precision", "form")
    form: Any  # the positions in an instruction, cached by `Form.of`

    def __init__(
        self, row: Row, ins: tuple[Operand, ...], statics: tuple[Any, ...], outs: tuple[Spec, ...], signal: str,
        precision: str = "",
    ) -> None:  # fmt: skip
        self.row, self.ins, self.statics, self.outs, self.signal = row, ins, statics, outs, signal
        self.tensor_operands = tuple(i for i, s in enumerate(ins) if type(s) is Spec)
        self.settings = dict(zip(row.statics, statics))
        self.precision = precision

    def __repr__(self) -> str:
        ins = ", ".join(f"{s.dtype.name}{list(s.shape)}" if type(s) is Spec else s.__name__ for s in self.ins)
        return f"{self.row.name}({ins})" + "".join(f" {k}={v}" for k, v in self.settings.items())

    def like(self, ins: tuple[Operand, ...], **changed: Any) -> Kind:
        """The same op on other operands, as for a shard of this one."""
        settings = {**self.settings, **changed}
        return infer(self.row, ins, tuple(settings[n] for n in self.row.statics), self.signal, self.precision)

    def piece(self, rule: Rule, first: int, size: int) -> Kind:
        """This kind on elements `first` to `first + size` of every axis that the rule shards."""
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
        if "row" in changed:  # a piece is another op
            other = TABLE[changed.pop("row")]
            settings = {**self.settings, **changed}
            return infer(other, ins, tuple(settings[n] for n in other.statics), self.signal, self.precision)
        return self.like(ins, **changed)

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.row, self.ins, self.statics, self.signal, self.precision)


def infer(row: Row, ins: tuple[Operand, ...], statics: tuple[Any, ...], signal: str = "", precision: str = "") -> Kind:
    """The kind of an op on these operands; raises an error for users if they are invalid. The precision is only kept where it
    makes a difference."""
    if not row.complex and not row.collective and any(type(s) is Spec and s.dtype.rank == 3 for s in ins):
        raise NotForComplex(f"{row.name} is not defined for complex tensors: take .real, .imag or .abs() first")
    if any(type(s) is not Spec and s not in _NUMBERS for s in ins):
        kinds = ", ".join(s.__name__ for s in ins if type(s) is not Spec)
        raise ArgumentTypeError(f"{row.name}: expected bool, int or float for numbers, got {kinds}: make a tensor of it")
    try:
        outs = row.shape(*ins, **dict(zip(row.statics, statics)))
    except (ValueError, TypeError, IndexError) as wrong:
        raise of_arguments(wrong).with_traceback(wrong.__traceback__) from None
    if precision and not (row.products and any(type(s) is Spec and s.dtype in SINGLE for s in ins)):
        precision = ""
    return Kind(row, ins, statics, outs if type(outs) is tuple else (outs,), signal, precision)


@cache
def arity(row: Row) -> tuple[int, int | None]:
    """The least and the most operands of an op (None: any number), by its kernel's signature."""
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
        raise ProtocolError(f"invalid spec {w}")
    return Spec(tuple(w[1:]), DTYPES[w[0]]) if w[0] >= 0 else _NUMBERS[-1 - w[0]]


def freeze(value: Any) -> Any:
    """Lists as tuples, so that a received value equals the sent one."""
    return tuple(freeze(v) for v in value) if isinstance(value, (list, tuple)) else value


def dtype_of_operand(s: Operand) -> DType:
    if isinstance(s, Spec):
        return s.dtype
    return bool_ if s is bool else int64 if s is int else float32


def rows(family: str | None = None) -> Iterator[Row]:
    return (r for r in TABLE.values() if family is None or r.family == family)
