"""The notebook of the tutorial, made of its page: python tools/notebooks.py

The page is the source: Python blocks become cells of code, everything between them cells of text. Nothing is executed here, so
the notebook holds no output; the tests execute it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from reference.outside import LINK  # noqa: E402

PAGE, NOTEBOOK = ROOT / "docs" / "tutorial.md", ROOT / "examples" / "tutorial.ipynb"
BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.S | re.M)


def cell(kind: str, number: int, text: str) -> dict[str, Any]:
    """A cell as nbformat 4.5 has it."""
    made: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
    if kind == "code":
        made |= {"execution_count": None, "outputs": []}
    return made


def notebook(page: str) -> dict[str, Any]:
    """The cells of a page of docs/, with its links leading on from examples/."""
    pieces: list[tuple[str, str]] = []
    for n, text in enumerate(BLOCK.split(page)):
        if n % 2:
            pieces.append(("code", text.strip("\n")))
        elif text.strip():
            led = LINK.sub(lambda m: m[0] if ":" in m[2] else f"{m[1]}../docs/{m[2]}{m[3]}", text.strip("\n"))
            pieces.append(("markdown", led))
    return {
        "cells": [cell(kind, number, text) for number, (kind, text) in enumerate(pieces)],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                     "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }  # fmt: skip


if __name__ == "__main__":
    NOTEBOOK.write_text(json.dumps(notebook(PAGE.read_text()), indent=1, ensure_ascii=False) + "\n")
    print(NOTEBOOK)
