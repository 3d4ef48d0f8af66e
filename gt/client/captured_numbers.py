"""What a captured function looks at besides tensors, so that a call which is replayed without its Python finds it again:
whether modules are in training, and numbers that change. An optimizer's counts of steps go on; one of its settings that changes
is captured anew once and from then on given with each call; random numbers are drawn on from where the session stands."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from gt.client.capture_notes import CapturedSetting
from gt.client.session import Session
from gt.client.traces import Window
from gt.program.code import walk
from gt.program.stretch import flat


class Numbers:
    """The numbers of a captured function that are given with each call, found in two calls of it."""

    def __init__(
        self, session: Session, noted: list[list[CapturedSetting]], before: Window, now: Window, given: set[tuple]
    ) -> None:
        self.session, self.seed = session, session.seed
        self.places = _places(session, noted, now)
        self.drawn = _drawn(session, before, now)
        self.counts = [x for update in noted for x in update if x.parameter is not None and x.counts]
        self.together = [[x for x in update if x.parameter is not None] for update in noted]  # counts that are one number
        old, new = flat(before.ops), flat(now.ops)
        self.apart = {  # settings that are given with each call, by position, and what sets them apart from equal ones
            p: x.key for p, x in self.places.items() if x.parameter is None and (x.key in given or old[p] != new[p])
        }  # fmt: skip

    def fill(self, holes: list[list[int]]) -> bool:
        """Find where the number for each hole comes from; whether that is known of all. `sources` has for each which of the
        call's draws it is, or the places that hold it."""
        if self.drawn is None or not all(p in self.places or p in self.drawn for positions in holes for p in positions):
            return False
        self.draws = max(self.drawn.values(), default=-1) + 1
        self.sources: list[int | list[CapturedSetting]] = [
            self.drawn[at[0]] if at[0] in self.drawn else list({self.places[p].key: self.places[p] for p in at}.values())
            for at in holes
        ]
        open_ = {x.key for source in self.sources if isinstance(source, list) for x in source}
        settings = {x.key: x for x in self.places.values() if x.parameter is None}
        self.given = {key for key in settings if key in open_}
        self.settings = [(x, x.value()) for x in settings.values()]
        return True

    def stale(self) -> str:
        """Why these numbers are not what the function would use now; "" where they are."""
        for setting, value in self.settings:
            if setting.value() != value and setting.key not in self.given:
                self.given.add(setting.key)
                return f"{setting.name} changed"
        if self.draws and self.seed != self.session.seed:
            return "another seed"
        alike = [*(source for source in self.sources if not isinstance(source, int)), *self.together]
        same = all(len({setting.value() for setting in settings}) <= 1 for settings in alike)
        if not same or not all(setting.stands() for setting in (*self.counts, *(p for p, _ in self.settings))):
            return "an optimizer's state is another"
        return ""

    def take(self) -> list[float | int]:
        """The numbers of another call."""
        for count in self.counts:
            count.within[count.name] += 1
        drawn = [next(self.session.draws) for _ in range(self.draws)]
        return [drawn[source] if isinstance(source, int) else source[0].value() for source in self.sources]


def _places(session: Session, noted: list[list[CapturedSetting]], window: Window) -> dict[int, CapturedSetting]:
    """Where the numbers at these positions of the window lie, as far as that is known and they are still there."""
    found: dict[int, CapturedSetting] = {}
    updates = iter(noted)
    for at, ins, kind, form in walk(window.ops, session.kinds.meaning.get):
        if kind.row.updates:
            for i, setting in zip(form.numbers, next(updates, ())):
                if setting.value() == ins[i]:
                    found[at + i] = setting
    return found


def _drawn(session: Session, before: Window, now: Window) -> dict[int, int] | None:
    """Which of its call's random numbers an op takes, by the position of that number. None where one call does not go on in the
    row of them where the one before it left off."""
    places = []
    for at, ins, kind, form in walk(now.ops, session.kinds.meaning.get):
        if kind.row.random:
            seed, number = map(form.at, _seeded(kind.row))
            if ins[seed] == session.seed:
                places.append(at + number)
    if not places:
        return {}
    old, new = flat(before.ops), flat(now.ops)
    first, start = min(old[p] for p in places), min(new[p] for p in places)
    drawn = {p: int(new[p] - start) for p in places}
    return drawn if first < start and all(old[p] - first == n for p, n in drawn.items()) else None


@cache
def _seeded(row: Any) -> tuple[int, int]:
    """Which operands of a random op are its seed and its number."""
    names = list(inspect.signature(row.kernel).parameters)[1:]  # the first is the array namespace
    return names.index("seed"), names.index("number")
