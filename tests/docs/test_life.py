"""The drawing and the page on the life of an instruction name functions that are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from drawings import PICTURES, STATIONS, Station, life  # noqa: E402

PAGE = (ROOT / "docs" / "design" / "life.md").read_text()


@pytest.mark.parametrize("number, station", list(enumerate(STATIONS, 1)), ids=lambda x: getattr(x, "title", ""))
def test_each_station_is_described_under_its_number_with_a_function_that_is_there(number: int, station: Station) -> None:
    assert re.search(rf"^ *def {station.function}\(", (ROOT / station.file).read_text(), re.M)
    [text] = re.findall(rf"^\*\*{number}\. .*?(?=\n\n)", PAGE, re.S | re.M)
    assert f"[`{station.function}` in {station.file}](../../{station.file})" in text


def test_the_picture_is_the_drawing() -> None:
    assert (PICTURES / "life.svg").read_text() == life(), "draw it again: python tools/drawings.py"
