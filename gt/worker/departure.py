"""A worker that was asked to end: it leaves when its work is done and its tensors are on other workers, or when the time for
that (GT_DRAIN) is over."""

from __future__ import annotations


class Departure:
    def __init__(self) -> None:
        self.deadline: float | None = None  # when it leaves at the latest, once it was asked to end
        self.announced = False  # whether the dispatcher was told
        self.released: str | None = None  # the dispatcher's answer: "", or which tensors could not be passed on

    def ask(self, deadline: float) -> None:
        self.deadline = deadline

    def due(self, now: float, unfinished: bool) -> bool:
        """Whether to leave."""
        late = self.deadline is not None and now > self.deadline
        return late or (self.released is not None and not unfinished)

    def reason(self) -> str:
        """The last word to the dispatcher."""
        why = "the time to pass on its tensors was over (GT_DRAIN)" if self.released is None else self.released
        return f"it was asked to end{', and ' if why else ''}{why}"
