"""Questions that are asked again and again: the instructions that Python will issue for one, and the ones to send in their
place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.deferred import SURE
from gt.client.early import RIGHT
from gt.client.read_ahead import Get
from gt.client.replies import Reply
from gt.program.code import Encoded, encoded
from gt.program.stretch import flat, pick
from gt.spec import Spec

Template = tuple[tuple[bool, Any], ...]  # for each element whether it counts from the id of the first load, and its distance


def template(now: Encoded, before: Encoded, first: int, then: int) -> Template | None:
    """The next instruction, by two of them and the ids of the first loads before; None if it cannot be predicted."""
    found: list[tuple[bool, Any]] = []
    for a, b in zip(now, before):
        if a == b and type(a) is type(b):
            if isinstance(a, (float, complex)) and a == 0:
                return None  # it may have either sign, and both compare equal
            found.append((False, a))
        elif type(a) is type(b) is int and a - first == b - then:
            found.append((True, a - first))
        else:
            return None
    return tuple(found) if len(now) == len(before) else None


class FreshQuestion:
    """The ops behind certain loads, and the read of one of their results. Of a question without loads the first op, as Python
    issues it, is in the place of the loads: the instructions that are sent may contain it in a call."""

    def __init__(self, numbers: tuple[int, ...], leads: int = 0) -> None:
        self.numbers = numbers  # of its instructions
        self.leads = leads  # instructions in front of them that are predicted, too, and not sent
        self.seen: tuple[list[Encoded], int] | None = None  # the last ones, and the id of the first load
        self.forms: list[tuple[Callable[[Encoded], Encoded], slice, Callable[[Encoded], tuple[Any, ...]]]] | None = None
        self.programs: set[int] = set()  # that the instructions to send call
        self.templates: list[Template] = []
        self.read: tuple[int, Spec] | None = None  # distance of the read's id, and its spec
        self.right, self.wanted = 0, RIGHT  # consecutive right predictions, and the number required to send one
        self.known = False  # whether it was sent, or could have been, and never wrong: then one right prediction is enough
        self.serial = -1  # of its last batch: instructions that are sent later may free its operands
        self.loads: list[tuple[int, int]] = []  # the number of each load, and its distance from the first one
        self.streak, self.sure = 0, SURE  # consecutive right ones that were sent early, and the number required to defer one

    def expected(self, first: int) -> list[Encoded]:
        return [tuple([first + part if counts else part for counts, part in known]) for known in self.templates]

    def learn(self, code: list[Encoded], first: int, id: int, spec: Spec) -> None:
        """The question was asked, with its read of an id."""
        read = (id - first, spec)
        if self.templates and read == self.read and self.expected(first) == code:
            self.right += 1
            self.known = self.known or self.right >= self.wanted
            return
        before, self.seen, self.right, self.read = self.seen, (code, first), 0, read
        found = [template(a, b, first, before[1]) for a, b in zip(code, before[0])] if before is not None else [None]
        self.templates = [] if None in found else [known for known in found if known is not None]
        if self.known and self.templates:
            self.right = self.wanted - 1


class Asked:
    """A question to be sent with its loads, or its first op, the first of which has the id `first`: the instructions that
    Python has to issue (`code`), the ones to send, the ids of their results, the ids that end with it, and the replies by
    id."""

    __slots__ = ("question", "first", "lead", "code", "sent", "mentions", "made", "ends", "replies", "gets")

    def __init__(self, question: FreshQuestion, first: int) -> None:
        self.question, self.first = question, first
        expected = question.expected(first)
        self.lead, self.code, self.sent = expected[: question.leads], expected[question.leads :], list[Encoded]()
        self.made: list[Any] = []
        self.ends: list[Any] = []
        for ins, (form, results, ends) in zip(self.code, question.forms or ()):
            self.sent.append(form(ins))
            self.made += ins[results]
            self.ends += ends(ins)
        self.mentions = frozenset(flat(self.code))
        self.replies: dict[int, Reply] = {}
        self.gets: tuple[Get, ...] = ()


def part_of_call(number: int, parts: list[int]) -> Callable[[Encoded], Encoded]:
    """The call of a program's part, with these parts of an instruction that calls the program."""
    chosen = pick(parts)
    return lambda ins: encoded(number, chosen(ins), ())
