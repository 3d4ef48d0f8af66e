"""docs/security.md names a test for each promise: those tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = PAGE[PAGE.index("| Incident | Tests |") :]
ROWS = [row.strip("| ").rsplit(" | ", 1) for row in TABLE.splitlines()[2:] if row.startswith("|")]


def files(name: str) -> list[Path]:
    """Test files of this name; `test_users (pure)` is the one in tests/pure."""
    stem, _, folder = name.partition(" (")
    found = list((ROOT / "tests").rglob(f"{stem}.py"))
    return [path for path in found if not folder or path.parent.name == folder.rstrip(")")]


def missing(holds: str) -> list[str]:
    """The tests of a cell that are not there. A part is `test_file: words, words`, or a file, or "the others" of one."""
    wrong = []
    for part in holds.replace(", test_", "; test_").split("; "):
        name, _, words = part.partition(": ")
        if not name.startswith("test_"):
            continue  # "the same": the tests of the row above
        found = files(name)
        text = "".join(path.read_text() for path in found)
        functions = re.findall(r"def (test_\w+)", text)
        wrong += [name] if not found else []
        for word in words.split(", ") if words else ():
            if word != "the others" and not any(word in function for function in functions):
                wrong.append(f"{name}: {word}")
    return wrong


@pytest.mark.parametrize(("happened", "holds"), ROWS)
def test_an_incident_is_held_by_an_existing_test(happened: str, holds: str) -> None:
    assert not missing(holds), f"{happened}: no such test"


def test_files_that_promises_name_are_there() -> None:
    named = re.findall(r"`(tests/\S+?\.py)`", PAGE)
    assert len(named) > 20 and [path for path in named if not (ROOT / path).exists()] == []


def test_a_name_of_no_test_is_noticed() -> None:
    assert missing("test_loads: no_place_in_the_order; test_absent: no_such_words; test_nothing") == [
        "test_absent: no_such_words", "test_nothing"
    ]  # fmt: skip
