"""Every statistic that a function returns is described (gt/watch/statistics.py), and no other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from gt.client.early import EARLY_STATISTICS
from gt.client.local_answers import LOCAL_STATISTICS
from gt.client.steps_ahead import AHEAD_STATISTICS
from gt.dispatcher import clients
from gt.watch.statistics import CLIENTS, DISPATCHER, HOST_COPIES, IN_FLIGHT, REPLAY, SHARES, STATISTICS, TRACES, WORKER

ROOT = Path(__file__).parents[2] / "gt"
DERIVED = {*EARLY_STATISTICS, *AHEAD_STATISTICS, *LOCAL_STATISTICS}  # by a comprehension
STREAMS = "worker/engine/torch/client_streams.py stats"  # of a client
# Described statistics, names that no dict spells out, and the functions that give them.
GIVEN_BY: list[tuple[dict[str, str], set[str], tuple[str, ...]]] = [
    (WORKER, {"index"}, ("worker/*.py stats", "worker/counts.py totals", "server/inner_dispatcher.py stats")),
    (TRACES, set(), ("worker/programs/*.py stats", "worker/engine/**/*.py stats")),
    (SHARES, {"moved"}, ("worker/fair_queue.py _stats", "worker/quotas.py stats", STREAMS)),
    (REPLAY, DERIVED, ("debug.py replay",)),
    (DISPATCHER, set(), ("dispatcher/questions.py _settled",)),
    (CLIENTS, {*clients.SUMMED, *clients.WORST} - {"entitled"}, ("dispatcher/clients.py listing",)),
    (IN_FLIGHT, set(), ("debug.py in_flight",)),
    (HOST_COPIES, {"tensors", "bytes", "served"}, ("debug.py host_copies",)),
]
NOT_OF_A_WORKER = "worker/quotas.py"  # its statistics are a client's
PASSED_ON = {"client/tracer.py stats", "client/early.py stats", "client/steps_ahead.py stats"}  # by gt.debug.replay
UNITS = {"units", "unit_calls", "traces", "calls"}  # which of them is decided before the dict
ABOUT_OTHERS = {"workers", "dispatcher", "shares"}  # keys of an answer, not statistics


def functions(path: Path) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


def keys(function: ast.FunctionDef) -> set[str]:
    """The keys of all dicts that a function spells out, and of single entries that it sets."""
    found = [k for node in ast.walk(function) if isinstance(node, ast.Dict) for k in node.keys]
    found += [t.slice for node in ast.walk(function) if isinstance(node, ast.Assign) for t in node.targets
              if isinstance(t, ast.Subscript)]  # fmt: skip
    return {k.value for k in found if isinstance(k, ast.Constant) and isinstance(k.value, str)}


def named(pattern: str) -> dict[str, ast.FunctionDef]:
    """`worker/core.py stats` and so on: the functions that a pattern of files and a name find."""
    files, name = pattern.split()
    return {f"{path.relative_to(ROOT)} {name}": f for path in ROOT.glob(files) for f in functions(path) if f.name == name}


def given(pattern: str) -> set[str]:
    """The keys that such functions spell out."""
    found = named(pattern)
    assert found, f"no function is {pattern}"
    if "*" in pattern:
        found.pop(f"{NOT_OF_A_WORKER} stats", None)
    return set().union(*map(keys, found.values()))


@pytest.mark.parametrize("described, more, by", GIVEN_BY, ids=lambda x: " ".join(x) if isinstance(x, tuple) else "")
def test_the_statistics_given_are_the_described_ones(described: dict[str, str], more: set[str], by: tuple[str, ...]) -> None:
    found = set().union(*map(given, by)) | more
    if described is TRACES:
        found = (found | UNITS) - given(STREAMS)
    if described is DISPATCHER:
        found -= {"index", *ABOUT_OTHERS}
    assert found == set(described), (
        f"described and not given: {set(described) - found}, given and not: {found - set(described)}"
    )


def test_no_function_that_gives_statistics_is_left_out() -> None:
    known = {name for _, _, by in GIVEN_BY for pattern in by for name in named(pattern)} | PASSED_ON
    left = {name for name, function in named("**/*.py stats").items() if name not in known and keys(function)}
    assert not left, f"describe the keys of {left} in gt/watch/statistics.py"


def test_descriptions_are_phrases() -> None:
    for names in STATISTICS.values():
        assert all(doc and not doc.endswith(".") and "\n" not in doc for doc in names.values())
