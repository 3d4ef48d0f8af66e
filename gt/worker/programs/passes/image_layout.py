"""Which images a program should lay out with their channels last."""

from __future__ import annotations

from gt.program import Instruction, Program
from gt.spec import Spec

FEW = 4  # convolutions below which the copies cost more than they gain


def channels_last(program: Program) -> frozenset[int]:
    """The inputs to lay out so: images and weights of convolutions, and the optimizer's state of these weights. None if there
    are few convolutions, or ops for which images would have to be laid out anew."""
    convolutions = [ins for ins in program.instructions if ins.op.images == "last"]
    others = any(ins.op.images == "first" for ins in program.instructions)
    if len(convolutions) < FEW or others or not all(map(_fits, convolutions)):
        return frozenset()
    specs = program.specs
    found = {v for ins in convolutions for v in ins.values if v <= program.inputs and _is_image(specs[v])}
    for ins in program.instructions:
        for part in ins.parts or (ins,):
            if part.op.updates and found.intersection(part.values):
                shape = next(specs[v].shape for v in part.values if v in found)
                found.update(v for v in part.values if v <= program.inputs and specs[v].shape == shape)
    return frozenset(found)


def _fits(ins: Instruction) -> bool:
    """Whether a convolution has fast kernels for that layout: images of at most 32 bits, in one group."""
    return ins.kind.settings["groups"] == 1 and all(_is_image(spec) and spec.dtype.size <= 4 for spec in ins.specs[:2])


def _is_image(spec: Spec) -> bool:
    return spec.ndim == 4 and spec.dtype.is_floating_point
