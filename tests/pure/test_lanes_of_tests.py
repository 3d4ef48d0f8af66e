"""`make test` finds tests in every folder of tests/, and nothing else lies there: one lane takes all that no other has."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_each_lane_has_folders_with_tests_alone() -> None:
    found = {path.name for path in TESTS.iterdir()} - {"__init__.py", "conftest.py", "__pycache__", "typing"}
    assert {name for name in found if not [*TESTS.glob(f"{name}/test_*.py")]} == set()
