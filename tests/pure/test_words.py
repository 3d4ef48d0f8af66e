"""Some words of docs/words.md have one meaning each: `outs` are the specs of a kind's results, a `kind` is a Kind, a `place`
lies in a segment, `tensors` are tensors. Comments and docstrings name a thing by its noun."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gt"
WITHOUT_NOUN = re.compile(r"\b(what|those that|beside|says)\b", re.IGNORECASE)
QUOTED = re.compile(r"`[^`]*`|\"[^\"]*\"")  # names of arguments, and words that are spoken of
WORDS = {"outs", "kind", "place", "tensors"}
OUTS = {  # files that name the specs of results
    "autograd/function.py", "client/kinds.py", "ops/recurrent.py", "ops/table.py", "ops/estimate.py", "program/foreach.py",
    "worker/collectives/ops.py", "worker/engine/custom.py",
}  # fmt: skip
# NumPy's and Kubernetes' own `kind`, and a field of a CUDA structure
OTHERS_KINDS = {"persistent/sampling.py", "persistent/gpu/persistent.py", "nn/utils/rnn.py", "clusters/kubernetes.py"}
FOUND_KINDS = ("infer(", "_Shape", "known.get(", "self.known.get(", "self._form(")
FOUND_PLACES = ("self.link.put(", "session.link.put(", "memory.lend(", "(-1, 0, 0)", "(0, 0, 0)")


def namings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Where one of the words names something: the word, and the annotation or the value as it is written."""
    for node in ast.walk(tree):
        pairs: list[tuple[str, ast.AST | None]] = []
        if isinstance(node, ast.arg):
            pairs = [(node.arg, node.annotation)]
        elif isinstance(node, ast.FunctionDef):
            pairs = [(node.name, node.returns)]
        elif isinstance(node, ast.keyword):
            pairs = [(node.arg or "", node.value)]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(name_of(node.target), node.annotation)]
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                pairs += zip(map(name_of, names), parts(node.value, len(names)))
        yield from ((word, ast.unparse(given) if given is not None else "") for word, given in pairs if word in WORDS)


def parts(value: ast.expr, n: int) -> list[ast.expr]:
    return value.elts if isinstance(value, ast.Tuple) and len(value.elts) == n else [value] * n


def name_of(target: ast.expr) -> str:
    return target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute) else ""


def wrong(file: str, word: str, given: str) -> bool:
    match word:
        case "outs":
            return file not in OUTS
        case "kind":
            fits = not given or "kind" in given.lower() or given.startswith(FOUND_KINDS)
            return not fits and file not in OTHERS_KINDS
        case "place":
            return bool(given) and not given.startswith(("Place", "tuple", "place", *FOUND_PLACES))
    return given.startswith(("int", "len(", "tuple[int", "Sequence[int"))


def test_outs_kind_place_and_tensors_have_one_meaning_each() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {word} for {given}"
        for path in sorted(ROOT.rglob("*.py"))
        for word, given in namings(ast.parse(path.read_text()))
        if wrong(str(path.relative_to(ROOT)), word, given)
    ]
    assert found == [], "use the noun for it: results, dtype, position, ..."


def test_another_meaning_is_found() -> None:
    other = "def f(kind: type, place: str): pass\nself.outs, tensors = 2, len(x)\nkind = dtype_of(x)\nplace = 3"
    found = [word for word, given in namings(ast.parse(other)) if wrong("client/apply.py", word, given)]
    assert sorted(found) == ["kind", "kind", "outs", "place", "place", "tensors"]
    fine = "def f(kind: Kind, place: Place, tensors: list[Tensor]): pass\nkind = infer(row, ins)\nself.kind, n = kind, 2"
    assert not [word for word, given in namings(ast.parse(fine)) if wrong("client/apply.py", word, given)]


def remarks(source: str) -> Iterator[str]:
    """The lines of all comments and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from (ast.get_docstring(node, clean=False) or "").splitlines()


def without_noun(source: str) -> list[str]:
    return [line.strip() for line in remarks(source) if WITHOUT_NOUN.search(QUOTED.sub("", line))]


def test_comments_and_docstrings_name_things_by_their_nouns() -> None:
    found = [
        f"{path.relative_to(ROOT.parent)}: {line}"
        for folder in ("gt", "tests", "benchmarks", "examples", "tools")
        for path in sorted((ROOT.parent / folder).rglob("*.py"))
        for line in without_noun(path.read_text())
    ]
    assert found == [], "write the noun instead of 'what', 'those that', 'beside', 'says'"


def test_a_comment_without_its_noun_is_found() -> None:
    vague = '''x = 1  # what the worker sent\ndef f():\n    """Frees those that\n    ended."""\n'''
    assert without_noun(vague) == ["# what the worker sent", "Frees those that"]
    fine = '''x = "what"  # the worker's answer; `what` names it\ndef f():\n    """Frees tensors."""\n'''
    assert without_noun(fine) == []
