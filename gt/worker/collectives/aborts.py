"""Aborted collectives: a member could not take part, its connection broke, or it waited too long. All members have to agree on
the aborted numbers, since their counts must agree, and continue with a new group after them.

A member that learns that the collectives up to a number were aborted tells all others, with its own number if that is higher,
so that all agree on the highest. The buffers of the old group are kept until all members know, as a peer may be reading
them."""

from __future__ import annotations

from typing import Any

from gt.worker.client_values import Broken

Members = tuple[int, ...]
Key = tuple[Members, int]  # a collective: its members, and its number among theirs


class Aborts:
    def __init__(self) -> None:
        self.last: dict[Members, tuple[int, Broken]] = {}  # the last aborted collective of each group, and the cause
        self.kept: list[tuple[Any, Key, set[int]]] = []  # old groups, and the members that may still read from them

    def cause(self, key: Key) -> Broken | None:
        """The cause if a collective was aborted."""
        number, cause = self.last.get(key[0], (0, None))
        return cause if key[1] <= number else None

    def generation(self, members: Members) -> int:
        """The number of the current group of these members."""
        return self.last[members][0] if members in self.last else 0

    def note(self, key: Key, cause: Broken) -> bool:
        """Abort all collectives up to this one. Returns whether that is new."""
        members, number = key
        if number <= self.generation(members) and members in self.last:
            return False
        self.last[members] = (number, cause)
        return True

    def keep(self, group: Any, key: Key, others: set[int]) -> None:
        if others:
            self.kept.append((group, key, others))

    def known_to(self, member: int, key: Key) -> None:
        """A member knows of the abort."""
        for _, (members, number), others in self.kept:
            if members == key[0] and number <= key[1]:
                others.discard(member)
        self._let_go()

    def meet(self, living: set[int]) -> None:
        """Drop the state of groups with a lost member."""
        for _, _, others in self.kept:
            others &= living
        self.last = {members: told for members, told in self.last.items() if living.issuperset(members)}
        self._let_go()

    def _let_go(self) -> None:
        self.kept = [kept for kept in self.kept if kept[2]]
