"""The departure of a worker: it leaves when its work is done and its tensors are on other workers, or after GT_DRAIN
seconds."""

from __future__ import annotations


class Departure:
    def __init__(self) -> None:
        self.deadline: float | None = None  # latest time of the departure, once requested
        self.announced = False  # whether the dispatcher knows
        self.released: str | None = None  # the dispatcher's answer: "", or the reason why tensors could not be moved

    def ask(self, deadline: float) -> None:
        self.deadline = deadline

    def due(self, now: float, unfinished: bool) -> bool:
        """Whether to leave."""
        late = self.deadline is not None and now > self.deadline
        return late or (self.released is not None and not unfinished)

    def reason(self) -> str:
        """The reason in the last message to the dispatcher."""
        why = "the time to pass on its tensors was over (GT_DRAIN)" if self.released is None else self.released
        return f"it was asked to end{', and ' if why else ''}{why}"
