"""A function of gt/client/functions is in the file of its row in gt/ops. Pointwise functions are generated from the table."""

from __future__ import annotations

from gt.client.functions.registry import FUNCTIONS
from gt.ops.table import TABLE

# Files of functions that expose rows of another file, where the family of the rows is a fact about them.
PARTS = {"diagonals": "movement", "join": "movement", "reshape": "movement", "vector_norms": "reduce"}
GENERATED = "pointwise"


def apart(functions: dict[str, str], rows: dict[str, str]) -> list[str]:
    """Names of rows whose function is in a file of another name. Both arguments map names to files."""
    return [
        f"{name}: gt/ops/{rows[name]}.py, gt/client/functions/{file}.py"
        for name, file in functions.items()
        if name in rows and file != GENERATED and PARTS.get(file, file) != rows[name]
    ]


def file_of(f: object) -> str:
    return str(getattr(f, "__module__", "")).rsplit(".", 1)[-1]


def test_functions_are_in_the_files_of_their_rows() -> None:
    functions = {name: file_of(f) for name, f in FUNCTIONS.items()}
    rows = {name: row.family for name, row in TABLE.items()}
    assert len(functions.keys() & rows.keys()) > 150
    assert apart(functions, rows) == [], "move one of the two"


def test_a_function_in_another_file_is_found() -> None:
    assert apart({"round": "elementwise", "exp": "pointwise"}, {"round": "math", "exp": "math"}) == [
        "round: gt/ops/math.py, gt/client/functions/elementwise.py"
    ]
