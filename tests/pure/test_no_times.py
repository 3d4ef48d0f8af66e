"""No test judges by how long something took: benchmarks do. Clocks are read for deadlines alone, or given to workers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time"}
OTHERS = re.compile(r"\b(process_time|thread_time|getrusage|timeit|default_timer|cpu_times|clock_gettime)\b")
DEADLINE = {"end", "until", "deadline", "timeout"}


def reads_a_clock(node: ast.AST) -> bool:
    """Whether a time is computed with: `time.monotonic() - start`."""
    return any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub) and any(map(is_clock, ast.walk(part)))
        for part in ast.walk(node)
    )


def is_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS


def compared(tree: ast.AST) -> list[int]:
    """Lines of assertions that compare a time that has passed with anything but a deadline."""
    named: dict[str, int] = {}  # names of times that have passed
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and reads_a_clock(node.value):
            named.update((target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
            if (reads_a_clock(node.test) or names & named.keys()) and not names & DEADLINE:
                found.append(node.lineno)
    return found


def test_no_assertion_compares_a_time_that_has_passed() -> None:
    for path in sorted(TESTS.rglob("*.py")):
        if path != Path(__file__):
            text = path.read_text()
            assert compared(ast.parse(text)) == [], f"{path}: count what is meant, or give it a clock of the test's own"
            assert not OTHERS.search(text), f"{path} measures a time"


def test_such_assertions_are_found() -> None:
    for text in (
        "took = time.perf_counter() - start\nassert took < 2",
        "assert time.monotonic() - start < 0.1",
        "assert min(time.time() - start, 3) < 1",
    ):
        assert compared(ast.parse(text)), text
    for text in ("assert time.monotonic() < end", "waited = time.monotonic() - start\nassert waited < timeout"):
        assert not compared(ast.parse(text)), text
