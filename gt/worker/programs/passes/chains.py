"""Fuses elementwise instructions that use one another's results into chains, for engines with one kernel for each chain: only
the values that others use are written to memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from gt.ops import Kind
from gt.ops.table import Row
from gt.program import Hole, Instruction, Program, with_frees
from gt.spec import Spec

LINKS = 64  # most instructions of a chain
INPUTS = 16  # most tensors that one reads, and writes
RESULTS = 8


@dataclass(frozen=True, slots=True)
class ChainLink:
    """An instruction of a chain. An operand is a pair: whether an earlier link makes it, and the number of that link or of the
    chain's input; or a number."""

    kind: Kind
    operands: tuple[Any, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self.kind.key, *[(type(o), repr(o)) for o in self.operands])  # zeros have signs


@dataclass(frozen=True, slots=True)
class Chain:
    """Links, and those of them whose results others use."""

    links: tuple[ChainLink, ...]
    results: tuple[int, ...]

    def __repr__(self) -> str:
        return " ".join([link.kind.row.name for link in self.links])

    @property
    def key(self) -> tuple[Any, ...]:
        return (*[link.key for link in self.links], self.results)


def _kernel(xp: Any, *operands: Any, chain: Chain) -> Any:
    """The reference: link by link."""
    made: list[Any] = []
    for link in chain.links:
        given = [(made if o[0] else operands)[o[1]] if type(o) is tuple else o for o in link.operands]
        assert link.kind.row.kernel is not None
        made.append(link.kind.row.kernel(xp, *given, **link.kind.settings))
    found = tuple([made[i] for i in chain.results])
    return found if len(found) > 1 else found[0]


def _shape(*operands: Any, chain: Chain) -> tuple[Spec, ...]:
    return tuple([chain.links[i].kind.outs[0] for i in chain.results])


# Passes alone make instructions of this row: it is not in the table, so that no client can send one.
CHAIN = Row("chain", shape=_shape, kernel=_kernel, family="elementwise", statics=("chain",))


@dataclass(slots=True)
class _Group:
    """Instructions that become a chain, by their indices. It is open as long as nothing else has used its results."""

    shape: tuple[int, ...]
    members: list[int] = field(default_factory=list)
    reads: set[Any] = field(default_factory=set)
    makes: set[int] = field(default_factory=set)

    def taking(self, others: Iterable[_Group]) -> _Group:
        for other in others:
            self.members += other.members
            self.reads |= other.reads
            self.makes |= other.makes
        return self

    @property
    def fits(self) -> bool:
        return len(self.members) <= LINKS and len(self.reads - self.makes) <= INPUTS


def fuse_chains(
    program: Program, joins: Callable[[Instruction], bool], at_own_place: Callable[[Instruction], bool],
    has_kernel: Callable[[Kind], bool],
) -> Program:  # fmt: skip
    """Fuse instructions that `joins` is true of and that have results of one shape, at the position of the last, where the
    chain `has_kernel`. An instruction that reads its operand elsewhere than `at_own_place`, as one that shifts it, can only be
    in another chain than the one that makes the operand."""
    first, numbers = min(program.kinds, default=0) - 1, dict[Any, int]()
    body: list[Instruction | None] = list(program.instructions)
    users: dict[int, set[int]] = {}  # by value, the indices of the instructions that use it
    for index, ins in enumerate(program.instructions):
        for value in ins.values:
            users.setdefault(value, set()).add(index)
    for value in program.results:
        users.setdefault(value, set()).add(len(body))
    for group in _groups(program, joins, at_own_place):
        made = _fused(program, sorted(group.members), users)
        chain: Chain = made.kind.statics[0]
        if not 0 < len(chain.results) <= RESULTS or not has_kernel(made.kind):
            continue
        number = numbers.setdefault((made.kind.ins, chain.key), first - len(numbers))
        for index in group.members:
            body[index] = None
        body[max(group.members)] = replace(made, number=number)
    kept = [ins for ins in body if ins is not None]
    if len(kept) == len(body):
        return program
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    return program.with_instructions(with_frees(kept, {*program.results, *lasting, *program.constants}))


def _groups(
    program: Program, joins: Callable[[Instruction], bool], at_own_place: Callable[[Instruction], bool]
) -> list[_Group]:  # fmt: skip
    """The groups of two and more. Instructions of a group may have others between them, none of which uses its results or
    overwrites an operand, as updates do. So open groups do not use one another's results, and can become one."""
    open_: dict[int, _Group] = {}  # by value, the open group that makes it
    found: dict[int, _Group] = {}  # by identity
    for index, ins in enumerate(program.instructions):
        if ins.op.updates or ins.parts or ins.in_place:
            open_.clear()
        member = not (ins.parts or ins.in_place) and joins(ins)
        shape = ins.made[0].shape if member else ()
        before = {id(group): group for value in ins.values if (group := open_.get(value)) is not None}
        for key, group in list(before.items()):
            if not (member and group.shape == shape and at_own_place(ins)):
                _close(open_, before.pop(key))
        if not member:
            continue
        alone = _Group(shape, [index], {*ins.values, *[n for n in ins.numbers if type(n) is Hole]}, set(ins.results))
        joined = _Group(shape).taking((*before.values(), alone))
        for key, group in before.items():
            _close(open_, group)
            if joined.fits:
                del found[key]
        joined = joined if joined.fits else alone
        found[id(joined)] = joined
        open_.update(dict.fromkeys(joined.makes, joined))
    return [group for group in found.values() if len(group.members) > 1]


def _close(open_: dict[int, _Group], group: _Group) -> None:
    for value in group.makes:
        open_.pop(value, None)


def _fused(program: Program, members: list[int], users: dict[int, set[int]]) -> Instruction:
    """The instruction of a chain; its number is yet to be given."""
    made: dict[int, int] = {}  # by value, the link that makes it
    inputs: dict[Any, tuple[int, Any]] = {}  # by value or hole (with its type), the chain's input and its spec
    links = []
    for n, index in enumerate(members):
        ins = program.instructions[index]
        operands: list[Any] = []
        for o, spec in zip(ins.operands, ins.kind.ins):
            if type(spec) is not Spec and type(o) is not Hole:
                operands.append(o)
            elif type(spec) is Spec and o in made:
                operands.append((True, made[o]))
            else:
                key = o if type(spec) is Spec else (o, spec)
                operands.append((False, inputs.setdefault(key, (len(inputs), spec))[0]))
        links.append(ChainLink(ins.kind, tuple(operands)))
        [result] = ins.results
        made[result] = n
    inside = set(members)
    results = {value: n for value, n in made.items() if not users.get(value, set()) <= inside}
    chain = Chain(tuple(links), tuple(results.values()))
    ins_ = tuple([spec for _, spec in inputs.values()])
    kind = Kind(CHAIN, ins_, (chain,), _shape(chain=chain), "")
    given = tuple([key[0] if type(key) is tuple else key for key in inputs])
    return Instruction(0, kind, tuple(results), given, line=program.instructions[members[-1]].line)
