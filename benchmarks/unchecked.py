"""`python unchecked.py server|worker ...`: GT's server or worker without its checks of messages, kinds and operands, for the
cases in trust.py. Any client can end such a process."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gt.dispatcher import rewrite, stream
from gt.ops.table import Kind, freeze, infer, row, spec_in
from gt.server.__main__ import main as server
from gt.transport import checks
from gt.worker import definitions, executor
from gt.worker.__main__ import main as worker

NOTES = {
    "first, second, made = ready.short", "first, made = ready.short", "specs[result] = made",
    "operands, expected = ready.checked",
}  # of checks alone  # fmt: skip


class WithoutChecks(ast.NodeTransformer):
    """Removes statements that only raise, and their own operands. Counts the removed ones."""

    def __init__(self) -> None:
        self.removed = 0

    def _kept(self, node: ast.stmt, checks: bool) -> ast.stmt | None:
        self.removed += checks
        return None if checks else node

    def visit_If(self, node: ast.If) -> ast.stmt | None:
        self.generic_visit(node)
        raises = [s for s in node.body if isinstance(s, ast.Raise) and "Preempted" not in ast.unparse(s)]
        numbers = ast.unparse(node.test) == "ready.limits"
        return self._kept(node, bool(raises) and not node.orelse or numbers)

    def visit_For(self, node: ast.For) -> ast.stmt | None:
        self.generic_visit(node)
        return self._kept(node, not node.body)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | None:
        return self._kept(node, ast.unparse(node) in NOTES)

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | None:
        return self._kept(node, ast.unparse(node.value).startswith("specs.update("))


def without_checks(module: ModuleType, owner: type, name: str, count: int) -> None:
    """Replace a method by itself without its checks, of which it must have this many."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(owner, name))))
    remover = WithoutChecks()
    changed = ast.fix_missing_locations(remover.visit(tree))
    if remover.removed != count:
        raise SystemExit(f"{owner.__name__}.{name}: expected {count} statements of checks, found {remover.removed}")
    made: dict[str, Any] = {}
    exec(compile(changed, f"<{owner.__name__}.{name} without checks>", "exec"), vars(module), made)
    setattr(owner, name, made[name])


def kind_in(definition: Any) -> Kind:
    statics: Any = freeze(definition.statics)
    return infer(row(definition.op), tuple(spec_in(tuple(wire)) for wire in definition.ins), statics, definition.signal)


def remove_checks() -> None:
    nothing: Callable[..., int] = lambda *args, **settings: 1  # noqa: E731
    for name in ("message", "batch", "plain", "length", "size", "_name", "_bounded"):
        setattr(checks, name, nothing)
    checks.kind_in = definitions.kind_in = kind_in
    definitions.check_results = nothing  # type: ignore[assignment]
    without_checks(rewrite, rewrite.Rewriter, "rewrite", 1)
    without_checks(stream, stream.Stream, "batch", 1)
    without_checks(executor, executor.InstructionExecutor, "execute", 10)
    without_checks(executor, executor.InstructionExecutor, "call", 2)


def switch() -> Callable[[bool], None]:
    """A function that turns this process's checks on or off."""
    where = [
        (checks, "message"),
        (checks, "batch"),
        (rewrite.Rewriter, "rewrite"),
        (stream.Stream, "batch"),
        (executor.InstructionExecutor, "execute"),
        (executor.InstructionExecutor, "call"),
    ]
    with_checks = [getattr(owner, name) for owner, name in where]
    remove_checks()
    without = [getattr(owner, name) for owner, name in where]

    def use(checked: bool) -> None:
        for (owner, name), found in zip(where, with_checks if checked else without):
            setattr(owner, name, found)

    return use


if __name__ == "__main__":
    remove_checks()
    sys.exit({"server": server, "worker": worker}[sys.argv[1]](sys.argv[2:]))
