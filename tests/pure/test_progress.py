"""Progress bars show the progress of a loop, on any output."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.watch import progress as module
from gt.watch.progress import LogLines, Notebook, ProgressBar, Terminal, duration


class Screen:
    seconds = 1.0

    def __init__(self) -> None:
        self.shown: list[tuple[float, str]] = []
        self.ended = 0

    def show(self, share: float, text: str) -> None:
        self.shown.append((share, text))

    def end(self) -> None:
        self.ended += 1


def test_a_bar_tells_count_share_rate_and_time_left_once_an_interval() -> None:
    now, on = [100.0], Screen()
    bar = ProgressBar(range(8), label="train", on=on, clock=lambda: now[0])
    for step in bar:
        now[0] += 0.5
        bar.note(f"loss {step}")
    assert [share for share, _ in on.shown] == [0.25, 0.5, 0.75, 1.0, 1.0] and on.ended == 1
    assert on.shown[0][1] == "train  2/8  25%  2/s  3.0 s left  loss 1"
    assert on.shown[-1][1] == "train  8/8 100%  2/s  4.0 s  loss 7"


def test_a_rate_is_a_plain_number() -> None:
    now, on = [0.0], Screen()
    bar = ProgressBar(range(4000), on=on, clock=lambda: now[0])
    for _ in bar:
        now[0] += 0.00025
    assert on.shown[-1][1] == "4000/4000 100%  4,000/s  1.0 s"


def test_a_loop_that_breaks_or_raises_shows_how_far_it_came() -> None:
    now, on = [0.0], Screen()

    def count() -> Iterator[int]:
        for i in range(5):
            now[0] += 0.25
            yield i
        raise OSError("no more")

    bar = ProgressBar(count(), on=on, clock=lambda: now[0])
    with pytest.raises(OSError, match="no more"):
        list(bar)
    assert on.shown[-1] == (-1.0, "5  4/s  1.2 s") and on.ended == 1
    with pytest.raises(TypeError, match="a generator has no length: give total="):
        len(bar)
    assert len(ProgressBar(iter([1, 2]), total=7, on=on)) == 7 and len(gt.progress([1, 2, 3])) == 3
    with pytest.raises(ValueError, match="expected a total of at least 0, got -1"):
        gt.progress([], total=-1)


def test_terminals_have_one_line_and_logs_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for on, wanted in (
        (Terminal(), "\r████████████░░░░░░░░░░░░ half\r████████████████████████ all \n"),
        (LogLines(), "half\nall\n"),
    ):
        written = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written)
        on.show(0.5, "half")
        on.show(1.0, "all")
        on.end()
        assert written.getvalue() == wanted
    assert isinstance(module.screen(), LogLines) and LogLines.seconds == 10


def test_notebooks_have_one_bar_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: list[str] = []

    class Display:
        HTML = str

        def display(self, picture: str, display_id: bool) -> Any:
            assert display_id
            pictures.append(picture)
            return self

        def update(self, picture: str) -> None:
            pictures[-1] = picture

    monkeypatch.setattr(module, "notebooks", Display())
    on = Notebook()
    on.show(0.25, "a < b")
    assert pictures == ["<div><progress value='0.2500' max='1'></progress> a &lt; b</div>"]
    on.show(1.0, "all")
    assert len(pictures) == 1 and "value='1.0000'" in pictures[0] and "all" in pictures[0]
    on.show(-1.0, "who knows")
    assert "value" not in pictures[0]


@pytest.mark.parametrize(("seconds", "text"), [(4.5, "4.5 s"), (123, "2:03"), (3723, "1:02:03")])
def test_durations_read_as_clocks_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text
