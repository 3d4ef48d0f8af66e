"""A fact about ops is a column of the table: outside gt/ops no code compares an op's name or family."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"


def names_an_op(node: ast.AST) -> bool:
    """`row.name`, `kind.row.name`, `definition.op` and the family of any row."""
    if not isinstance(node, ast.Attribute):
        return False
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    return owner in ("row", "op") and node.attr in ("name", "family") or owner in OWNERS and node.attr == "op"


OWNERS = {"kind", "definition", "row", "use", "node"}
METHODS = {"startswith", "endswith", "removeprefix", "removesuffix", "split", "find"}


def comparisons(source: str) -> list[int]:
    """Lines that compare an op's name or family, or look into it. Looking it up in a table of kernels is no such test."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            table = isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(node.comparators[0], (ast.Name, ast.Attribute))
            table = table and names_an_op(node.left)
            if any(map(names_an_op, (node.left, *node.comparators))) and not table:
                found.append(node.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in METHODS and names_an_op(node.func.value):
                found.append(node.lineno)
        elif isinstance(node, ast.Match) and names_an_op(node.subject):
            found.append(node.lineno)
    return found


def test_no_file_but_the_table_s_tests_an_op_s_name_or_family() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("ops", "backends")  # rows of gt/backends are backends
        for line in comparisons(path.read_text())
    ]
    assert not wrong, f"these lines compare an op's name or family, which is to be a column of gt/ops/table.py: {wrong}"


def test_the_search_finds_comparisons_of_names() -> None:
    for line in ("row.family == 'reduce'", "kind.row.name in ('add', 'mul')", "'x' in row.name", "definition.op == 'load'"):
        assert comparisons(line) == [1], line
    assert comparisons("ins.op.family == 'create'") == [1]
    assert comparisons("kind.row.name.endswith('_like')") == [1] and not comparisons("worker.name == 'w0'")
    assert not comparisons("kernel = OWN[row.name] if row.name in OWN else None")
