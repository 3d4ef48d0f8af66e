"""Splits the factors of products into pieces, for engines with a kernel that multiplies these: a factor of several products is
split once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gt.ops import Kind
from gt.ops.estimate import PRODUCT
from gt.ops.table import Row
from gt.program import Instruction, Program, with_frees
from gt.spec import Spec, bfloat16, float32

PIECES = 3
FACTORS = 2  # of a product
KEPT = 1 << 30  # most bytes of pieces that are kept for later products


class ProductSizes(NamedTuple):
    """A product of `rows` x `depth` by `depth` x `columns`. Its factors are matrices with all but the last axis of an operand
    as one; a `turned` one is transposed."""

    rows: int
    columns: int
    depth: int
    turned: tuple[bool, bool]
    shape: tuple[int, ...]


def _seconds(kind: Kind) -> float:
    sizes: ProductSizes = kind.settings["sizes"]
    return PRODUCT * sizes.rows * sizes.columns * sizes.depth


# Passes alone make instructions of these rows, for engines with kernels of their own for them: they are not in the table, so
# that no client can send one.
SPLIT = Row("split_factor", shape=lambda a: _pieces(a), kernel=None, family="elementwise")
SPLIT_PRODUCT = Row(
    "split_product", shape=lambda a, b, *bias, sizes: Spec(sizes.shape, float32), kernel=None, family="products",
    statics=("sizes",), compute_seconds=_seconds,
)  # fmt: skip


def _pieces(a: Spec) -> Spec:
    return Spec((PIECES, *a.shape), bfloat16)


class _Splits:
    """A program whose products are replaced one by one, with new numbers of kinds and values."""

    def __init__(self, program: Program) -> None:
        values = {v for ins in program.instructions for v in (*ins.results, *ins.values)}
        self.value = max((program.inputs, *values, *program.constants))
        self.number, self.numbers = min(program.kinds, default=0), dict[Any, int]()
        self.body: list[Instruction] = []
        self.pieces: dict[int, tuple[int, Spec]] = {}  # by factor, in the order in which they were split

    def product(self, ins: Instruction, sizes: ProductSizes) -> None:
        """Write a product of pieces."""
        (a, of_a), (b, of_b) = (self.split(ins, i) for i in range(2))
        kind = Kind(SPLIT_PRODUCT, (of_a, of_b, *ins.kind.ins[2:]), (sizes,), ins.kind.outs, "")
        self._write(kind, ins.results, (a, b, *ins.operands[2:]), ins.line)

    def split(self, ins: Instruction, operand: int) -> tuple[int, Spec]:
        """The pieces of an operand, and their spec."""
        value, spec = ins.operands[operand], ins.kind.ins[operand]
        if value not in self.pieces:
            self.value += 1
            self.pieces[value] = self.value, _pieces(spec)
            self._write(Kind(SPLIT, (spec,), (), (_pieces(spec),), ""), (self.value,), (value,), ins.line)
            while sum(made.nbytes for _, made in self.pieces.values()) > KEPT and len(self.pieces) > FACTORS:
                del self.pieces[next(iter(self.pieces))]
        return self.pieces[value]

    def _write(self, kind: Kind, results: tuple[int, ...], operands: tuple[Any, ...], line: str) -> None:
        number = self.numbers.setdefault(kind.key, self.number - 1 - len(self.numbers))
        self.body.append(Instruction(number, kind, results, operands, line=line))


def split_factors(program: Program, sizes_of: Callable[[Instruction], ProductSizes | None]) -> Program:
    """Replace the products that `sizes_of` has sizes for."""
    found = _Splits(program)
    for ins in program.instructions:
        if ins.op.updates or ins.parts or ins.in_place:
            found.pieces.clear()  # it may overwrite a factor
        if ins.parts or ins.in_place or ins.holes or (sizes := sizes_of(ins)) is None:
            found.body.append(ins)
        else:
            found.product(ins, sizes)
    if not found.numbers:
        return program
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    return program.with_instructions(with_frees(found.body, {*program.results, *lasting, *program.constants}))
