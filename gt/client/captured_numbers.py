"""The changing numbers of a captured function, so that a call can be replayed without its Python code: an optimizer's step
counts, which are incremented; its settings, which after a change are captured again once and from then on are arguments of
each call; and random numbers, which continue the session's sequence."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from gt.client.capture_notes import CapturedSetting
from gt.client.session import Session
from gt.client.traces import Window
from gt.program.code import bits, walk
from gt.program.stretch import flat


class Numbers:
    """The numbers of a captured function that are arguments of its trace, found by comparing two calls."""

    def __init__(
        self, session: Session, noted: list[list[CapturedSetting]], before: Window, now: Window, given: set[tuple]
    ) -> None:
        self.session, self.seed = session, session.seed
        self.places = _places(session, noted, now)
        self.drawn = _drawn(session, before, now)
        self.counts = [x for update in noted for x in update if x.parameter is not None and x.counts]
        self.together = [[x for x in update if x.parameter is not None] for update in noted]  # step counts that share a number
        old, new = flat(before.ops), flat(now.ops)
        self.apart = {  # by position, settings that are arguments, each with a label that keeps it separate from equal ones
            p: x.key for p, x in self.places.items() if x.parameter is None and (x.key in given or bits(old[p]) != bits(new[p]))
        }  # fmt: skip

    def fill(self, holes: list[list[int]]) -> bool:
        """Find the source of each hole's number. Returns whether all are known. `sources` has for each the index of the call's
        random draw, or the settings with its value."""
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
        """Why the captured numbers are outdated; "" if they are current."""
        for setting, value in self.settings:
            if setting.key not in self.given and bits(setting.value()) != bits(value):
                self.given.add(setting.key)
                return f"{setting.name} changed"
        if self.draws and self.seed != self.session.seed:
            return "another seed"
        alike = [*(source for source in self.sources if not isinstance(source, int)), *self.together]
        same = all(len({bits(setting.value()) for setting in settings}) <= 1 for settings in alike)
        if not same or not all(setting.stands() for setting in (*self.counts, *(p for p, _ in self.settings))):
            return "an optimizer's state was replaced"
        return ""

    def take(self) -> list[float | int]:
        """The numbers of the next call."""
        for count in self.counts:
            count.within[count.name] += 1
        drawn = [next(self.session.draws) for _ in range(self.draws)]
        return [drawn[source] if isinstance(source, int) else source[0].value() for source in self.sources]


def _places(session: Session, noted: list[list[CapturedSetting]], window: Window) -> dict[int, CapturedSetting]:
    """The settings behind the numbers at these positions of the window, as far as known and still in use."""
    found: dict[int, CapturedSetting] = {}
    updates = iter(noted)
    for at, ins, kind, form in walk(window.ops, session.kinds.meaning.get):
        if kind.row.updates:
            for i, setting in zip(form.numbers, next(updates, ())):
                if bits(setting.value()) == bits(ins[i]):
                    found[at + i] = setting
    return found


def _drawn(session: Session, before: Window, now: Window) -> dict[int, int] | None:
    """By position of the number, the index of the call's random draw that an op uses. None if a call does not continue the
    previous call's sequence."""
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
    """The operand indices of a random op's seed and number."""
    names = list(inspect.signature(row.kernel).parameters)[1:]  # the first is the array namespace
    return names.index("seed"), names.index("number")
