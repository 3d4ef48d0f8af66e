"""Files do not import one another in circles, and imports are at the top; modules that load late are LazyImports there."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"
# Packages that GT does without, or that take long to load: they are imported where they are used.
OPTIONAL = {"torch", "triton", "ml_dtypes", "safetensors", "rich", "matplotlib", "pyopencl", "psutil", "resource", "numpy"}
OPTIONAL |= {"ray", "textual", "starlette", "uvicorn"}


def modules() -> dict[str, Path]:
    named = {".".join(("gt", *p.relative_to(ROOT).with_suffix("").parts)): p for p in sorted(ROOT.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = modules()


def imported(path: Path) -> list[tuple[str, bool]]:
    """Every module that a file imports, at its top, inside a function or as a LazyImport, and whether a function does so."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                names = [f"{child.module}.{alias.name}" for alias in child.names]
                found.extend((name if name in MODULES else str(child.module), inside) for name in names)
            elif isinstance(child, ast.Call) and getattr(child.func, "id", "") == "LazyImport":
                found.append((ast.literal_eval(child.args[0]), inside))
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


def test_functions_import_only_optional_packages() -> None:
    late = {
        (str(path.relative_to(ROOT)), module)
        for path in MODULES.values()
        for module, inside in imported(path)
        if inside and module.split(".")[0] not in OPTIONAL
    }
    assert not late, "imports stand at the top; a module that takes long to load is a LazyImport there"


def test_lazy_imports_exist_and_count_as_imports() -> None:
    lazy = {m for m, _ in imported(ROOT / "worker/engine/torch/library.py")}
    assert "gt.tensor_ops.cuda.kernels" in lazy
    known = {m for path in MODULES.values() for m, _ in imported(path) if m.startswith("gt.")}
    assert {m for m in known if m not in MODULES and m.rpartition(".")[0] not in MODULES} == set()


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]] and circles({"a": {"b"}, "b": set()}) == []
