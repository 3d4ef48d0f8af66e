"""Parts in C whose source has changed since they were built."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from gt.native_modules import native
from gt.source_digest import source_digest

ROOT = Path(__file__).parents[2]
BUILT = [*ROOT.glob("gt/**/_*.so"), *ROOT.glob("gt/**/_*.pyd")]


def make(folder: Path, digest: str) -> None:
    """A package `parts` with the module `_sum`, built from a source of this digest."""
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "_sum.py").write_text(f'"""{digest}"""\n')
    (folder / "parts" / "sum.c").write_text('#include <stdio.h>\n#include "sum.h"\n')
    (folder / "parts" / "sum.h").write_text("int sum(int, int);\n")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("GT_NATIVE", raising=False)
    for name in ("parts", "parts._sum"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    make(tmp_path, "")
    make(tmp_path, source_digest(tmp_path / "parts" / "sum.c"))
    return tmp_path / "parts"


def test_a_part_of_the_same_source_is_used(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native("parts._sum") is sys.modules["parts._sum"]
        assert native("parts._missing") is None
        monkeypatch.setenv("GT_NATIVE", "0")
        assert native("parts._sum") is None


@pytest.mark.parametrize("changed", ["sum.c", "sum.h"])
def test_a_part_of_another_source_is_not_used_and_the_remedy_is_told(parts: Path, changed: str) -> None:
    with open(parts / changed, "a") as file:
        file.write("/* changed */\n")
    with pytest.warns(UserWarning, match=r"sum\.c has changed since parts\._sum was built.*pip install -e"):
        assert native("parts._sum") is None


def test_a_part_without_its_source_is_used(parts: Path) -> None:
    (parts / "sum.c").unlink()
    assert native("parts._sum") is not None


@pytest.mark.skipif(not BUILT, reason="no part in C was built")
@pytest.mark.parametrize("part", BUILT, ids=lambda path: path.name.partition(".")[0])
def test_the_parts_of_this_checkout_are_of_its_sources(part: Path) -> None:
    name = part.name.partition(".")[0]
    assert native(".".join([*part.parent.relative_to(ROOT).parts, name])).__doc__ == source_digest(
        part.parent / f"{name[1:]}.c"
    )
