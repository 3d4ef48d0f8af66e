"""A handler of all exceptions confines a failure on purpose, with the reason on its line; other handlers name their
exceptions."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"
BROAD = {"Exception", "BaseException"}


def broad(source: str) -> list[tuple[int, bool]]:
    """The lines of handlers of all exceptions, and whether each gives a reason."""
    lines, found = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            names = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(name is None or (isinstance(name, ast.Name) and name.id in BROAD) for name in names):
                found.append((node.lineno, len(lines[node.lineno - 1].partition("  # ")[2].split()) > 2))
    return found


def test_every_broad_handler_gives_its_reason() -> None:
    found = {str(path.relative_to(ROOT)): broad(path.read_text()) for path in ROOT.rglob("*.py")}
    bare = [f"{name}:{line}" for name, handlers in found.items() for line, reason in handlers if not reason]
    assert bare == [], "name the exceptions, or give the reason on the line of `except`"
    assert sum(map(len, found.values())) > 20, "handlers are not found any more"


def test_broad_handlers_are_found() -> None:
    source = "try:\n    pass\nexcept (OSError, Exception):\n    pass\ntry:\n    pass\nexcept:  # a kernel may fail\n    pass\n"
    assert broad(source) == [(3, False), (7, True)] and broad("try:\n    pass\nexcept OSError:\n    pass\n") == []
