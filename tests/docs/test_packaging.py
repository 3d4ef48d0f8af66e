"""Packaging: the changelog's form, and the files of the source distribution and the wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gt

ROOT = Path(__file__).parents[2]
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
NEEDED = ("tests/conftest.py", "docs/conf.py", "docs/pictures/life.svg", "examples/tutorial.ipynb",
          "examples/config_sharding.yaml", "tools/reference/examples.txt", "benchmarks/run.py", "Makefile", "Dockerfile",
          "requirements.txt",          "gt/client/native.c", "AGENTS.md")  # fmt: skip


def test_the_changelog_has_the_usual_form() -> None:
    headings = re.findall(r"^(#+) (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[0] == ("#", "Changelog") and headings[1] == ("##", "[Unreleased]")
    releases = [text for level, text in headings[2:] if level == "##"]
    assert releases and all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", text) for text in releases)
    assert releases[0].startswith(f"[{gt.__version__}]") and {text for level, text in headings if level == "###"} <= SECTIONS


@pytest.mark.slow
def test_the_distributions_hold_the_files_that_tests_and_users_need(tmp_path: Path) -> None:
    """Built from a copy without anything compiled, and without a compiler: the parts in C are optional."""
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "*.so", "reference"))
    shutil.copytree(ROOT / "tools" / "reference", tree / "tools" / "reference", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(tmp_path), "bdist_wheel", "-d", str(tmp_path)]
    env = {"PATH": "/nonexistent", "CC": "/nonexistent/cc", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [packed], [wheel] = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    with tarfile.open(packed) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert set(NEEDED) <= names
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(p.relative_to(tree)) for p in (tree / "gt").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert wanted <= inside and "gt/py.typed" in inside and not [name for name in inside if name.endswith(".so")]
