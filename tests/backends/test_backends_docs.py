"""Every Python block of the backend pages runs, and the table has the form that the registry gives it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gt import backends
from gt.backends.listing import markdown
from gt.tensor_ops import choice

DOCS = Path(__file__).parents[2] / "docs"
NEEDS = {"tensor_ops_cpp": "cpp"}


def blocks():
    for name in ("backends.md", "tensor_ops.md", "worker-backends.md"):
        text = (DOCS / name).read_text()
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
            yield pytest.param(match[1], id=f"{name}:{text[: match.start()].count(chr(10)) + 1}")


@pytest.mark.parametrize("code", list(blocks()))
def test_the_block_runs(code):
    for word, backend in NEEDS.items():
        if word in code and (reason := choice.process.reason(backend)):
            pytest.skip(reason)
    if "import torch" in code:
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_table_lists_every_backend_in_the_registrys_form():
    page = (DOCS / "backends.md").read_text()
    table = re.search(r"make_backends.py -->\n(.*?)\n<!-- end -->", page, re.S)[1].splitlines()
    today = markdown([backends.get_backend_info(row.name) for row in backends.ROWS]).splitlines()
    assert table[:2] == today[:2]
    first_two = [[line.split(" | ")[:2] for line in lines[2:]] for lines in (table, today)]
    assert first_two[0] == first_two[1]
