"""The examples in docstrings give the results that they show."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
from pathlib import Path

import pytest

import gt

PARTS = [
    "gt.amp",
    "gt.autograd",
    "gt.client.functions",
    "gt.data",
    "gt.files",
    "gt.func",
    "gt.nn",
    "gt.optim",
    "gt.profiler",
    "gt.utils",
]


def modules() -> list[str]:
    found = []
    for part in PARTS:
        module = importlib.import_module(part)
        found.append(part)
        if hasattr(module, "__path__"):
            found += [m.name for m in pkgutil.walk_packages(module.__path__, f"{part}.")]
    return found


@pytest.mark.parametrize("name", modules())
def test_a_docstring_tells_the_truth(name: str, tmp_path: Path) -> None:
    module = importlib.import_module(name)
    tests = [t for t in doctest.DocTestFinder(exclude_empty=True).find(module, globs={"gt": gt}) if t.examples]
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        with gt.testing.cluster(1, "numpy"):
            for test in tests:
                problems: list[str] = []
                failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=problems.append).failed
                assert not failed, "".join(problems)
                test.globs.clear()
    finally:
        os.chdir(before)


def test_the_parts_have_examples() -> None:
    """A guard against looking in the wrong place."""
    names = {t.name for m in modules() for t in doctest.DocTestFinder().find(importlib.import_module(m)) if t.examples}
    assert {"gt.autograd.walk.grad", "gt.files.save", "gt.func.grad", "gt.amp.casting.autocast"} <= names
