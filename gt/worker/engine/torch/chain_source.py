"""The source of a chain's Triton kernel: a load for each input and place where it is read, a line for each link, and a store
for each result. Each line rounds as PyTorch's kernel of that op does, so the results have the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gt.ops import Kind
from gt.program import Hole, Instruction
from gt.spec import Spec
from gt.worker.programs.passes.chains import Chain, ChainLink

LEAST = 1 << 16  # elements: the kernels for fewer take no longer than their launch
MOST = 1 << 30  # elements, so that indices have 32 bits
BLOCK = 1024
FLOATS = {"float32": "tl.float32", "float16": "tl.float16", "bfloat16": "tl.bfloat16"}
LARGER = "tl.{}({}, {}, propagate_nan=tl.PropagateNan.ALL)"


class Expression(NamedTuple):
    """`text(link, *operands)` is the value in Triton, of operands in float32, or conditions in bool; with `halves` also of
    float16 and bfloat16, rounded; `fits` is true of instructions that have it; with `mixed` the result may have another dtype
    than the operand."""

    text: Callable[..., str]
    halves: bool = False
    fits: Callable[[Instruction], bool] = lambda ins: True
    mixed: bool = False


def _infix(sign: str, halves: bool = False) -> Expression:
    return Expression(lambda link, a, b: f"{a} {sign} {b}", halves)


def _larger(name: str) -> Expression:
    return Expression(lambda link, a, b: LARGER.format(name, a, b))


def _quotient(link: ChainLink, a: str, b: str) -> str:
    """PyTorch multiplies by the reciprocal of a number."""
    number = link.operands[1]
    return f"tl.div_rn({a}, {b})" if type(number) is tuple else f"{a} * {_literal(_reciprocal(number))}"


def _reciprocal(number: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(1) / np.float32(number))


def _divides(ins: Instruction) -> bool:
    number = ins.operands[1]
    return type(ins.kind.ins[1]) is Spec or type(number) is Hole or math.isfinite(_reciprocal(number))


def _is_cast(ins: Instruction) -> bool:
    return ins.kind.ins[0].dtype.name == "bool" or ins.kind.outs[0].dtype.name in FLOATS


EXPRESSIONS: dict[str, Expression] = {
    "add": _infix("+", True), "sub": _infix("-", True), "mul": _infix("*", True), "div": Expression(_quotient, fits=_divides),
    "neg": Expression(lambda link, a: f"{a} * -1.0", True),  # Triton's own sign subtracts from zero
    "abs": Expression(lambda link, a: f"tl.abs({a})", True), "square": Expression(lambda link, a: f"{a} * {a}", True),
    "sqrt": Expression(lambda link, a: f"tl.sqrt_rn({a})"),
    "pow": Expression(lambda link, a, b: f"{a} * {a}", fits=lambda ins: ins.operands[1] == 2),
    "maximum": _larger("maximum"), "minimum": _larger("minimum"),
    "relu": Expression(lambda link, a: LARGER.format("maximum", a, "0.0"), True),
    "relu_grad": Expression(lambda link, g, y: f"tl.where({y} <= 0.0, 0.0, {g})", True),
    "where": Expression(lambda link, c, a, b: f"tl.where({c}, {a}, {b})"),
    "eq": _infix("=="), "ne": _infix("!="), "lt": _infix("<"), "le": _infix("<="), "gt": _infix(">"), "ge": _infix(">="),
    "cast": Expression(lambda link, a: f"{a}.to(tl.float32)", True, _is_cast, mixed=True),
}  # fmt: skip


def _shifts(ins: Instruction) -> bool:
    """Whether it is a roll by known numbers along different axes."""
    axes, shifts = ins.kind.settings["axes"], ins.operands[1:]
    return len(set(axes)) == len(axes) == len(shifts) and min(axes) >= 0 and all(type(s) is int for s in shifts)


SHIFTED = {"roll": _shifts}  # rows that read an element of another place


def at_own_place(ins: Instruction) -> bool:
    return ins.op.name not in SHIFTED


def joins(ins: Instruction) -> bool:
    """Whether an instruction can be a link."""
    if len(ins.results) != 1 or not LEAST <= ins.kind.outs[0].numel <= MOST:
        return False
    if (shifts := SHIFTED.get(ins.op.name)) is not None:
        return ins.kind.outs[0].dtype.name in FLOATS and shifts(ins)
    found = EXPRESSIONS.get(ins.op.name)
    if found is None or not _typed(ins, found):
        return False
    finite = all(type(n) in (int, float) and math.isfinite(np.float32(n)) for n in ins.numbers if type(n) is not Hole)
    return finite and found.fits(ins)


def _typed(ins: Instruction, by: Expression) -> bool:
    """Whether its tensors are of one floating-point dtype, or conditions; numbers that each call gives are float32's alone."""
    names = {spec.dtype.name for spec in (*ins.specs, *ins.made)} - {"bool"}
    if by.mixed:
        return names <= set(FLOATS)
    return names == {"float32"} or by.halves and len(names) == 1 and names <= set(FLOATS) and not ins.holes


def is_elementwise(kind: Kind) -> bool:
    """Whether each result of a kind depends on elements of the same place, or on single ones: then the order of elements in
    memory does not matter."""
    chain: Chain = kind.settings["chain"]
    shape = kind.outs[0].shape
    full = all(type(spec) is not Spec or spec.shape == shape or spec.ndim == 0 for spec in kind.ins)
    return full and all(link.kind.row.name not in SHIFTED for link in chain.links)


def source(kind: Kind) -> str:
    """The kernel's source. `first` is the first element's index: behind the last one it computes nothing."""
    return "\n".join(_Writer(kind).lines) + "\n"


class _Writer:
    def __init__(self, kind: Kind) -> None:
        chain: Chain = kind.settings["chain"]
        self.ins, self.shape = kind.ins, chain.links[0].kind.outs[0].shape
        self.loads: dict[tuple[int, str], str] = {}  # by input and index
        pointers = [f"p{i}" for i in range(len(kind.ins))] + [f"q{i}" for i in range(len(kind.outs))]
        self.lines = [
            f"def chain({', '.join(pointers)}, first):",
            f"    at = first + tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})",
            f"    inside = at < {math.prod(self.shape)}",
        ]
        for n, link in enumerate(chain.links):
            self.lines.append(f"    v{n} = {self._value(link)}")
        for q, n in enumerate(chain.results):
            self.lines.append(f"    tl.store(q{q} + at, v{n}, mask=inside)")

    def _value(self, link: ChainLink) -> str:
        name, out = link.kind.row.name, link.kind.outs[0].dtype.name
        if name in SHIFTED:
            return self._load(link.operands[0][1], self._shifted(link))
        operands = [self._operand(o, i, out) for i, o in enumerate(link.operands)]
        text = EXPRESSIONS[name].text(link, *operands)
        return f"({text}).to({FLOATS[out]}).to(tl.float32)" if out in FLOATS and out != "float32" else text

    def _operand(self, operand: Any, position: int, out: str) -> str:
        if type(operand) is not tuple:  # PyTorch makes a tensor of a number before the first tensor
            return _literal(_rounded(operand, out) if position == 0 else operand)
        is_made, i = operand
        return f"v{i}" if is_made else self._load(i, self._index(i))

    def _load(self, i: int, index: str) -> str:
        name = self.loads.get((i, index))
        if name is None:
            name = self.loads[i, index] = f"x{len(self.loads)}"
            spec = self.ins[i]
            read = f"tl.load(p{i} + {index}, mask=inside, other=0)" if index else f"tl.load(p{i})"
            exact = type(spec) is Spec and spec.dtype.name in ("float32", "bool")
            self.lines.append(f"    {name} = {read}{'' if exact else '.to(tl.float32)'}")
        return name

    def _index(self, i: int) -> str:
        """The index in an input that is broadcast to the chain's shape; "" of a single element."""
        spec = self.ins[i]
        if type(spec) is not Spec or spec.numel == 1:
            return ""
        if spec.numel == math.prod(self.shape):
            return "at"
        terms, inner, stride = [], 1, 1
        sizes = (1,) * (len(self.shape) - spec.ndim) + spec.shape
        runs: list[list[int]] = []  # axes, last first, in a row that are broadcast or are not: [elements, whether broadcast]
        for size, whole in zip(reversed(sizes), reversed(self.shape)):
            if whole == 1:
                continue
            if runs and runs[-1][1] == (size == 1):
                runs[-1][0] *= whole
            else:
                runs.append([whole, int(size == 1)])
        for elements, is_broadcast in runs:
            if not is_broadcast:
                terms.append(f"at // {inner} % {elements} * {stride}")
                stride *= elements
            inner *= elements
        return f"({' + '.join(terms)})"

    def _shifted(self, link: ChainLink) -> str:
        """The index of the element that a roll moves here."""
        text = "at"
        for axis, shift in zip(link.kind.settings["axes"], link.operands[1:]):
            size, inner = self.shape[axis], math.prod(self.shape[axis + 1 :])
            if by := shift % size:
                text += f" + tl.where(at // {inner} % {size} < {by}, {(size - by) * inner}, {-by * inner})"
        return f"({text})" if text != "at" else text


def _rounded(number: float, dtype: str) -> float:
    if dtype == "float16":
        return float(np.float16(number))
    if dtype == "bfloat16":  # to the nearest of 16 bits, ties to even
        bits = int(np.float32(number).view(np.uint32))
        return float(np.uint32(bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32))
    return float(number)


def _literal(number: float) -> str:
    """A number in float32."""
    return f"({float(np.float32(number))!r})"
