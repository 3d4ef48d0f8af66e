"""Fuses instructions that do not need one another into one: equal ones, as of an op on a list of tensors, and pairs with common
work, as the two gradients of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from gt.program import Instruction, Program
from gt.spec import Spec
from gt.worker.programs.passes.fuse_updates import fuse_at

FEW = 4  # least instructions
SMALL = 1 << 16  # most elements of tensors that may wait in memory: an op on them takes no longer than the launch of a kernel


def fuse_lists(program: Program, alike: Callable[[Instruction], Hashable]) -> Program:
    """Fuse instructions with the same `alike`, which is None where there is no kernel for many, at the position of the last.
    Large ones have to stand in a row; small ones may have others between them that neither use their results nor overwrite
    their operands, as updates do."""
    body: list[Instruction | None] = list(program.instructions)
    for places in _lists(program, alike):
        fuse_at(body, places)
    fused = tuple([ins for ins in body if ins is not None])
    return program if len(fused) == len(body) else program.with_instructions(fused)


def fuse_pairs(program: Program, half: Callable[[Instruction], tuple[Hashable, bool] | None]) -> Program:
    """Fuse two instructions that share most of their work. `half` returns a key, the same for both, and which of the two an
    instruction is; None for all others."""
    body: list[Instruction | None] = list(program.instructions)
    open_: dict[tuple[Hashable, bool], list[int]] = {}  # halves that wait for their other one
    for index, ins in enumerate(program.instructions):
        if ins.op.updates:  # it may overwrite their operands
            open_.clear()
        if ins.parts or (found := half(ins)) is None:
            continue
        key, second = found
        if others := open_.get((key, not second)):
            fuse_at(body, [others.pop(0), index])
        else:
            open_.setdefault(found, []).append(index)
    fused = tuple([ins for ins in body if ins is not None])
    return program if len(fused) == len(body) else program.with_instructions(fused)


def _lists(program: Program, alike: Callable[[Instruction], Hashable]) -> list[list[int]]:
    found: list[list[int]] = []
    lists: dict[Hashable, list[int]] = {}  # lists that may grow
    makes: dict[int, Hashable] = {}  # by value, the list that makes it
    large: set[Hashable] = set()  # lists with a large one
    for index, ins in enumerate(program.instructions):
        if ins.op.updates or ins.parts:
            lists.clear()
        for value in ins.values:
            lists.pop(makes.get(value), None)
        if ins.parts or ins.in_place or (key := alike(ins)) is None:
            continue
        is_large = not _is_small(ins)
        places = lists.get(key)
        if places is None or places[-1] != index - 1 and (is_large or key in large):
            places = lists[key] = []
            found.append(places)
            large.discard(key)
        places.append(index)
        makes.update(dict.fromkeys(ins.results, key))
        large.update((key,) if is_large else ())
    return [places for places in found if len(places) >= FEW]


def _is_small(ins: Instruction) -> bool:
    return all(spec.numel <= SMALL for spec in ins.kind.ins if type(spec) is Spec)
