"""Editors read Tensor's methods from gt/__init__.pyi, which is generated from the op table: the file is current."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_checked_in_stub_is_current() -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    made = subprocess.run([sys.executable, "tools/stubs.py", "--check"], cwd=ROOT, env={**os.environ, "PYTHONPATH": path})
    assert made.returncode == 0, "run `make stubs` and commit gt/__init__.pyi"


def test_the_stub_names_the_ops_of_the_table() -> None:
    text = (ROOT / "gt" / "__init__.pyi").read_text()
    assert "class Tensor(" in text and "    def exp(self) -> Tensor: ..." in text and "def randn(" in text
    assert (ROOT / "gt" / "py.typed").exists()


def test_mypy_reads_the_package_and_the_user_s_script() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert {"gt", "tests/typing/users.py"} <= set(settings["mypy"]["files"])
    assert "*.pyi" in settings["setuptools"]["package-data"]["gt"]
