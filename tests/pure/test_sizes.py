"""Files of at most 400 lines and functions of at most 40: a longer one holds a second idea, or has its reason here. An entry
that is not needed any more must go, so these lists only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"
FILE, FUNCTION = 400, 40
HOT = "the hot path: a call costs as much as the work inside it"
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS = {
    "client/apply.py reference": HOT,
    "dispatcher/rewrite.py Rewriter.rewrite": HOT,
    "persistent/gpu/phases.py phases": "the program of one decode step, phase after phase",
    "persistent/gpu/triton_kernels.py product_kernel": "a Triton kernel is one function",
    "persistent/gpu/triton_kernels.py rotate_kernel": "a Triton kernel is one function",
    "persistent/gpu/triton_kernels.py attention_kernel": "a Triton kernel is one function",
    "persistent/kernel.py PersistentKernel.__init__": "the constructor that users call, with all its settings",
}


def functions(node: ast.AST, within: str = "") -> Iterator[tuple[str, int]]:
    """The functions of a file, by the names they stand in, and their lengths."""
    for child in ast.iter_child_nodes(node):
        name = f"{within}{'.' if within else ''}{child.name}" if isinstance(child, DEFINITIONS) else within
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert child.end_lineno is not None
            yield name, child.end_lineno - child.lineno + 1
        yield from functions(child, name)


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def test_no_file_is_longer_than_400_lines_without_a_reason() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in ROOT.rglob("*.py")}
    long = {name for name, n in lengths.items() if n > FILE}
    assert long - LONG_FILES.keys() == set(), f"over {FILE} lines: find the second idea in it and name it"
    assert LONG_FILES.keys() - long == set(), "not too long any more: take it from the list"


def test_no_function_is_longer_than_40_lines_without_a_reason() -> None:
    long = {
        f"{path.relative_to(ROOT)} {name}"
        for path in ROOT.rglob("*.py")
        for name, n in functions(ast.parse(path.read_text()))
        if n > FUNCTION
    }
    assert long - LONG_FUNCTIONS.keys() == set(), f"over {FUNCTION} lines: find the second idea in it and name it"
    assert LONG_FUNCTIONS.keys() - long == set(), "not too long any more: take it from the list"


def test_lengths_are_counted_from_the_first_line_to_the_last() -> None:
    assert list(functions(ast.parse("class A:\n    def f(self):\n        def g():\n            pass\n"))) == [
        ("A.f", 3),
        ("A.f.g", 2),
    ]
