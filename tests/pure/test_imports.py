"""Files do not import one another in circles, and imports stand at the top. What is not so yet is listed with its reason; the
lists only shrink."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"
# Packages that GT does without, or that take long to load: they are imported where they are used.
OPTIONAL = {"torch", "triton", "ml_dtypes", "safetensors", "rich", "matplotlib", "pyopencl", "psutil", "resource", "numpy"}
OPTIONAL |= {"ray", "pynvml", "textual", "starlette", "uvicorn"}
START = "a process that only starts or ends others does not load it"
TRITON = "needs triton, which is optional"
TORCH = "needs torch, which is optional"
DYNAMO = "loads torch.compile, which takes seconds, for programs that are to be compiled"
LATE: dict[str, tuple[int, str]] = {
    "debug.py": (2, START),
    "persistent/gpu/triton_executor.py": (1, TRITON),
    "tensor_ops/cuda/backend.py": (1, TRITON),
    "watch/stats.py": (2, START),
    "worker/__main__.py": (1, START),
    "worker/collectives/process_group.py": (1, TORCH),
    "worker/engine/torch/engine.py": (1, DYNAMO),
    "worker/engine/torch/library.py": (2, TRITON),
}


def modules() -> dict[str, Path]:
    named = {".".join(("gt", *p.relative_to(ROOT).with_suffix("").parts)): p for p in sorted(ROOT.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = modules()


def imported(path: Path) -> list[tuple[str, bool]]:
    """Every module that a file imports, and whether a function does so."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                found.extend((name if name in MODULES else str(child.module), inside) for name in names)
            visit(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(ast.parse(path.read_text()), False)
    return found


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Sets of files that reach one another, by Tarjan's algorithm."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    for name in sorted(edges):
        if name not in order:
            visit(name)
    return found


def test_files_import_one_another_in_no_circle() -> None:
    edges = {name: {m for m, _ in imported(path) if m in MODULES and m != name} for name, path in MODULES.items()}
    assert circles(edges) == [], "these files import one another in a circle, at their top or inside functions"


def test_functions_import_only_what_is_optional_or_listed() -> None:
    late = Counter(
        str(path.relative_to(ROOT))
        for path in MODULES.values()
        for module, inside in imported(path)
        if inside and module.split(".")[0] not in OPTIONAL
    )
    assert late == {name: count for name, (count, _) in LATE.items()}, "imports stand at the top; this list only shrinks"


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]] and circles({"a": {"b"}, "b": set()}) == []
