"""Collectives that were given up: by a member that could not take part, whose connection broke, or that waited too long. All
members have to agree which they were, since they count alike, and go on with a new group behind them.

Each member that learns that the collectives up to a number were given up tells all others, with its own number if it had come
further; so all agree on the highest. What a member held in the old group is kept until all others know: one of them may be
reading it."""

from __future__ import annotations

from typing import Any

from gt.worker.client_values import Broken

Members = tuple[int, ...]
Key = tuple[Members, int]  # a collective: its members, and which of theirs it is


class Aborts:
    def __init__(self) -> None:
        self.last: dict[Members, tuple[int, Broken]] = {}  # the last collective that was given up, and why
        self.kept: list[tuple[Any, Key, set[int]]] = []  # old groups, and who may still use them

    def cause(self, key: Key) -> Broken | None:
        """Why a collective was given up, if it was."""
        number, cause = self.last.get(key[0], (0, None))
        return cause if key[1] <= number else None

    def generation(self, members: Members) -> int:
        """Which of the groups of these members is in use."""
        return self.last[members][0] if members in self.last else 0

    def note(self, key: Key, cause: Broken) -> bool:
        """All up to this one are given up; whether that is news."""
        members, number = key
        if number <= self.generation(members) and members in self.last:
            return False
        self.last[members] = (number, cause)
        return True

    def keep(self, group: Any, key: Key, others: set[int]) -> None:
        if others:
            self.kept.append((group, key, others))

    def known_to(self, member: int, key: Key) -> None:
        """That member has heard of it."""
        for _, (members, number), others in self.kept:
            if members == key[0] and number <= key[1]:
                others.discard(member)
        self._let_go()

    def meet(self, living: set[int]) -> None:
        """Who is there. No set with another member will do anything any more."""
        for _, _, others in self.kept:
            others &= living
        self.last = {members: told for members, told in self.last.items() if living.issuperset(members)}
        self._let_go()

    def _let_go(self) -> None:
        self.kept = [kept for kept in self.kept if kept[2]]
