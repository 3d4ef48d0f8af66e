"""A program as text, a line for each instruction: `c = add(a, b)  # float32[4, 8], frees a, train.py:12`. The holes are N0,
N1, ..."""

from __future__ import annotations

from typing import Any

from gt.spec import DTYPES, Spec

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def name_of(value: int) -> str:
    """The name of a value: a, b, ..., z, a1, b1, ..."""
    round_, letter = divmod(value - 1, len(LETTERS))
    return LETTERS[letter] + (str(round_) if round_ else "")


def spec_text(spec: Any) -> str:
    return f"{spec.dtype.name}{list(spec.shape)}" if isinstance(spec, Spec) else "?"


def text(program: Any) -> str:
    specs = program.specs
    given = [f"{name_of(v)}: {spec_text(specs.get(v))}" for v in range(1, program.inputs + 1)]
    given += [f"N{i}" for i in range(program.holes)]
    ends = [name_of(i + 1) for i in program.dying]
    lines = [f"program {program.number}({', '.join(given)}):" + (f"  # frees {', '.join(ends)}" if ends else "")]
    lines += [f"    {name_of(v)} = constant" for v in sorted(program.constants)]
    lines += [f"    {line}" for ins in program.instructions for line in lines_of(ins)]
    return "\n".join([*lines, f"    return {', '.join(map(name_of, program.results)) or 'nothing'}"])


def lines_of(ins: Any) -> list[str]:
    """The lines of an instruction: itself, or a heading and the parts that it runs in one call."""
    notes = [f"frees {', '.join(map(name_of, ins.frees))}"] if ins.frees else []
    if ins.parts:
        notes.insert(0, f"{len(ins.parts)} {'ops' if ins.in_order else ins.op.name} in one call")
        return [f"together:  # {', '.join(notes)}", *(f"    {line}" for part in ins.parts for line in lines_of(part))]
    notes = [", ".join(map(spec_text, ins.made)), *notes]
    notes += ["in place"] * ins.in_place + ["side stream"] * ins.side + [ins.line] * bool(ins.line)
    words = [name_of(o) if type(spec) is Spec else f"{o}" for o, spec in zip(ins.operands, ins.kind.ins)]
    words += [f"{name}={DTYPES[v].name if name == 'dtype' else v}" for name, v in ins.kind.settings.items()]
    words += [f"precision={ins.kind.precision}"] * bool(ins.kind.precision)
    return [f"{', '.join(map(name_of, ins.results))} = {ins.op.name}({', '.join(words)})  # {', '.join(notes)}"]
