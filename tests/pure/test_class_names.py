"""One class for each name, so that a name in a traceback or a search is unambiguous. The exceptions have their reasons."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"
PYTORCH = "PyTorch has it under this name in both places"
SHARED = {
    "autocast": PYTORCH,
    "Linear": "a module as in PyTorch, and the same layer as data of gt.persistent",
    "RMSNorm": "a module as in PyTorch, and the same layer as data of gt.persistent",
    "Cluster": "users subclass the one of gt.clusters, and gt.testing.Cluster is documented",
}


def repeated(texts: Iterable[str]) -> set[str]:
    """Names of classes at the top of several of these files; a name that begins with an underscore is a file's own."""
    names = Counter(
        node.name for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    )
    return {name for name, n in names.items() if n > 1}


def test_no_two_classes_share_a_name_without_a_reason() -> None:
    found = repeated(path.read_text() for path in ROOT.rglob("*.py"))
    assert found - SHARED.keys() == set(), "name one of them for the difference between them"
    assert SHARED.keys() - found == set(), "shared no more: take it from the list"


def test_a_shared_name_is_found() -> None:
    assert repeated(["class A: pass\nclass B: pass", "class B: pass", "class _C: pass", "class _C: pass"]) == {"B"}
