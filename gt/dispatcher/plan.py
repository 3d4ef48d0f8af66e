"""How one instruction becomes instructions for workers: which rule, what must move. Plans are cached by kind and layouts."""

from __future__ import annotations

from dataclasses import dataclass

from gt.ops import Kind
from gt.spec import Layout


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What to do with an instruction. `solo`: hand it as it is to this worker; its results are laid out as `outs` says."""

    solo: int | None
    outs: tuple[Layout, ...]

    @property
    def out(self) -> Layout:
        return self.outs[0]


def choose(kind: Kind, layouts: tuple[Layout, ...]) -> Plan:
    """The plan for a kind whose tensor operands are laid out so (a new tensor: where it is to be)."""
    first = layouts[0]
    assert first.solo is not None and all(x is first for x in layouts), "operands on several workers"
    return Plan(first.solo, (first,) * len(kind.outs))
