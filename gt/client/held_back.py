"""Instructions that are held back, of questions that were answered in the client (`local_answers.py`). A question is dropped as
soon as nobody needs it: no tensor of its results is left, and no question behind it that is needed takes one of them. The
others go out in their order before the next batch, and then the frees of their results and of other tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.client.repeats import MARK
from gt.program.code import Encoded, first_result, freed_id, frees_of, is_free, makes_one_of, ops, with_place
from gt.program.stretch import flat


class HeldQuestion:
    """Its instructions, the ids of its loads, and the ids that it frees and has not made. `needs` counts the results that are
    left, and the questions behind it that take one of them; `takes` are the ones before it from which it takes some; `ended`
    are its results that were freed after it."""

    __slots__ = ("code", "loads", "outer", "needs", "takes", "ended")

    def __init__(self, code: list[Encoded], loads: Sequence[Any], outer: Sequence[Any], left: int) -> None:
        self.code, self.loads, self.outer, self.needs = code, loads, outer, left
        self.takes: list[HeldQuestion] = []
        self.ended: list[Any] = []


class HeldBack:
    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self.questions: dict[HeldQuestion, None] = {}  # in their order
        self.owner: dict[Any, HeldQuestion] = {}  # by the id of a result that is left
        self.frees: list[Any] = []  # other ids to free: of tensors that the workers have, or will have
        self.bytes: dict[int, bytes] = {}  # of loads that have no place yet

    def add(
        self, code: list[Encoded], loads: Sequence[Any], left: Sequence[Any], inputs: Sequence[Any], outer: Sequence[Any]
    ) -> None:
        """Hold back a question of which the results `left` are not freed in it."""
        owner = self.owner
        question = HeldQuestion(code, loads, outer, len(left))
        for id in owner.keys() & inputs:
            before = owner[id]
            before.needs += 1
            question.takes.append(before)
        for id in outer:
            self._end(id)
        self.questions[question] = None
        for id in left:
            owner[id] = question
        if not left:
            self._drop(question)

    def _end(self, id: Any) -> None:
        """A tensor is freed."""
        question = self.owner.pop(id, None)
        if question is None:
            self.frees.append(id)
            return
        question.ended.append(id)
        question.needs -= 1
        if not question.needs:
            self._drop(question)

    def _drop(self, question: HeldQuestion) -> None:
        dropped = [question]
        while dropped:
            question = dropped.pop()
            del self.questions[question]
            self.counts["questions_dropped"] += 1
            for id in question.loads:
                self.bytes.pop(id, None)
            for before in question.takes:
                before.needs -= 1
                if not before.needs:
                    dropped.append(before)

    def before(self, session: Any, batch: list[Encoded], gets: Sequence[Any]) -> list[Encoded]:
        """The instructions to send for a batch: behind the ones that are needed, and with places for loads."""
        if self.questions or self.frees:
            if self.owner:
                batch = self._without_ended(batch, {*flat(ops(batch)), *[get[1] for get in gets]})
            batch = [*self._taken(), *batch]
        loads = self.bytes
        return [self._placed(session, ins) if makes_one_of(ins, loads) else ins for ins in batch] if loads else batch

    def _without_ended(self, batch: list[Encoded], used: set[Any]) -> list[Encoded]:
        """A batch without the frees of results that it does not use."""
        kept = []
        for ins in batch:
            if is_free(ins) and freed_id(ins) in self.owner and freed_id(ins) not in used:
                self._end(freed_id(ins))
            else:
                kept.append(ins)
        return kept

    def _taken(self) -> list[Encoded]:
        """All that is needed, which is sent now."""
        code, ended = list[Encoded](), list[Any]()
        for question in self.questions:
            outer = question.outer
            code += [ins for ins in question.code if not (is_free(ins) and freed_id(ins) in outer)] if outer else question.code
            code.append((MARK,))  # one trace does not go on into the next question
            ended += question.ended
        code += frees_of([*ended, *self.frees])
        self.counts["questions_sent"] += len(self.questions)
        self.questions, self.owner, self.frees = {}, {}, []
        return code

    def _placed(self, session: Any, ins: Encoded) -> Encoded:
        """A load that was held back, with a place for its bytes."""
        data = self.bytes.pop(first_result(ins))
        if session.local.allowed and session.workers is session.local.workers:
            return with_place(ins, session.link.put(np.frombuffer(data, np.uint8)))
        session.uploads[first_result(ins)] = data  # other workers may not share memory with this process
        return with_place(ins, (-1, 0, 0))
