"""The notebook of the tutorial is its page, and its cells run; tensors, placements and statistics are HTML there."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from notebooks import NOTEBOOK, PAGE, notebook  # noqa: E402


def test_the_notebook_is_the_page() -> None:
    assert json.loads(NOTEBOOK.read_text()) == notebook(PAGE.read_text()), "make it again: python tools/notebooks.py"


@pytest.mark.slow
def test_every_notebook_runs_and_shows_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    nbclient, nbformat = importlib.import_module("nbclient"), importlib.import_module("nbformat")
    monkeypatch.setenv("GT_BACKEND", "numpy")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for path in ROOT.glob("examples/*.ipynb"):
        book = nbformat.read(path, as_version=4)
        book.cells.append(
            nbformat.v4.new_code_cell("display(gt.ones(2, 2), gt.ones(2).placement, gt.debug.get_worker_stats())")
        )
        book.cells.insert(-1, nbformat.v4.new_code_cell("for i in gt.progress(range(3), label='bar'): pass"))
        nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
        code = [c for c in book.cells if c.cell_type == "code"]
        assert all(c.execution_count for c in code)
        assert "text/html" in code[0].outputs[-1].data  # the tensor that the first cell ends with
        (bar,) = code[-2].outputs
        assert "value='1.0000'" in bar.data["text/html"] and "bar  3/3 100%" in bar.data["text/html"]
        assert [("text/html" in out.data) for out in code[-1].outputs if out.output_type == "display_data"] == [True] * 3
