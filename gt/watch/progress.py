"""The progress of a loop: an HTML bar in notebooks, one line written over in terminals, and elsewhere, as in the log of a batch
job, a line every ten seconds. It writes to standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from html import escape
from operator import length_hint
from typing import Any, Generic, Protocol, TypeVar

from gt.lazy_import import LazyImport

T = TypeVar("T")
notebooks = LazyImport("IPython.display")  # there in notebooks
WIDTH = 24  # columns of a terminal's bar


class Screen(Protocol):
    """`seconds` pass between two pictures of a bar. `share` is below zero where the end is not known."""

    seconds: float

    def show(self, share: float, text: str) -> None: ...

    def end(self) -> None: ...


class Notebook:
    seconds = 0.2

    def __init__(self) -> None:
        self.handle: Any = None

    def show(self, share: float, text: str) -> None:
        value = f"value='{share:.4f}'" if share >= 0 else ""
        picture = notebooks.HTML(f"<div><progress {value} max='1'></progress> {escape(text)}</div>")
        if self.handle is None:
            self.handle = notebooks.display(picture, display_id=True)
        else:
            self.handle.update(picture)

    def end(self) -> None:
        pass


class Terminal:
    seconds = 0.1

    def __init__(self) -> None:
        self.last = 0  # characters of the line that is there

    def show(self, share: float, text: str) -> None:
        filled = round(max(share, 0.0) * WIDTH)
        line = f"{'█' * filled}{'░' * (WIDTH - filled)} {text}" if share >= 0 else text
        sys.stderr.write(f"\r{line:<{self.last}}")
        sys.stderr.flush()
        self.last = len(line)

    def end(self) -> None:
        sys.stderr.write("\n")
        sys.stderr.flush()


class LogLines:
    seconds = 10.0

    def show(self, share: float, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        pass


def screen() -> Screen:
    """The stream that this process writes to."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return Notebook()
    return Terminal() if sys.stderr.isatty() else LogLines()


class ProgressBar(Generic[T]):
    """`for batch in gt.progress(loader)`: a bar with the number of rounds, rounds a second and the time left. `note` shows a
    text behind it. A round counts when the script is through with it: workers may be behind, unless it reads a value.

        >>> for step in (bar := gt.progress(range(3), label="train")):
        ...     bar.note(f"step {step}")
        >>> bar.done
        3
    """

    def __init__(
        self, things: Iterable[T], total: int | None = None, label: str = "", *,
        on: Screen | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if total is not None and total < 0:
            raise ValueError(f"progress: expected a total of at least 0, got {total}")
        self.things, self.label, self.clock = things, label, clock
        self.total = total if total is not None else length_hint(things, -1)
        self.on = on if on is not None else screen()
        self.done, self.text, self.began = 0, "", clock()

    def __len__(self) -> int:
        if self.total < 0:
            raise TypeError(f"progress: a {type(self.things).__name__} has no length: give total=")
        return self.total

    def note(self, text: str) -> None:
        """Show this text behind the bar."""
        self.text = text

    def __iter__(self) -> Iterator[T]:
        self.done, self.began = 0, self.clock()
        due = self.began + self.on.seconds
        try:
            for thing in self.things:
                yield thing
                self.done += 1
                if (now := self.clock()) >= due:
                    due = now + self.on.seconds
                    self._show(now)
        finally:
            self._show(self.clock())
            self.on.end()

    def _show(self, now: float) -> None:
        seconds = max(now - self.began, 1e-9)
        share = min(1.0, self.done / self.total) if self.total > 0 else -1.0
        count = f"{self.done}/{self.total} {share:4.0%}" if share >= 0 else f"{self.done}"
        rate = self.done / seconds
        left = f"{duration((self.total - self.done) / rate)} left" if 0 <= share < 1 and rate > 0 else duration(seconds)
        parts = (self.label, count, f"{rate:,.0f}/s" if rate >= 1000 else f"{rate:.3g}/s", left, self.text)
        self.on.show(share, "  ".join(part for part in parts if part))


def duration(seconds: float) -> str:
    """`1:02:03`, `2:03`, `4.5 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


progress = ProgressBar
