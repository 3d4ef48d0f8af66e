"""The form of every message that gt/ raises, read by ast: it names the fault, by a value that was found or by the name
of an argument, function, class or option; no message begins with a pronoun or is a bare phrase."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2] / "gt"
VAGUE = ("what ", "nobody", "somebody", "something", "it ", "they ", "that ", "those ", "such ", "bad ", "error")
# An argument with = or _, a call, an option, a class, a file, a quoted word or code: `dim=`, `numpy()`, `--host`, `DataLoader`.
NAMED = re.compile(r"\{|\w+=|\w_\w|\w+\(|--\w|[A-Z][a-z]+[A-Z]\w*|[\w.]+\.\w|`|'\w|\"\w|\bGT\b")
FUNCTIONS = (  # the called function
    "cat ", "clamp:", "diff:", "flipud:", "hstack ", "median ", "narrow:", "stack_module_state:", "topk ", "transpose ",
)  # fmt: skip
PLAIN = {  # whose subject is a plain noun, of which there is one; this list only shrinks
    "Independent has no list of its values: they multiply over the axes",
    "LBFGS takes one parameter group: its steps are of all parameters together",
    "a 0-d tensor has no length",
    "a Spec does not change",
    "a checkpointed function ran other ops when it was called again for its gradient: expected the same ones",
    "an index has at most one ... (Ellipsis), and several were given",
    "batched gradients: call grad once for each",
    "cannot iterate over a 0-d tensor",
    "cannot resize a variable that requires gradients",
    "concentration of Dirichlet is a vector, or a batch of them",
    "divergences of Independent distributions are known for as many axes on both sides",
    "divergences of transformed distributions are known for equal transforms",
    "neither NVRTC (pip install nvidia-cuda-nvrtc) nor nvcc was found",
    "no C++ compiler found: install g++ or clang++, or set CXX",
    "only a whole-number tensor of one element can be an index",
    "probs and logits of Categorical have at least one axis, that of the classes",
    "sampler decides the order of samples: leave out shuffle",
    "shard and mesh both say where tensors lie: give one of them",
    "sliding-window attention is not supported: every layer attends to the whole context",
    "this checkpoint was written on a big-endian machine, which is not supported",
    "this kernel was finalized: make another one",
    "this transform has other events at its input than at its output: ask domain and codomain",
    "transforms are a Transform or a list of them",
}
# Where messages between processes of ours are refused, too, or reasons are given that no user sees.
INSIDE = ("worker/", "transport/", "dispatcher/", "server/", "small/", "client/local_question.py")


class Message(NamedTuple):
    place: str
    error: str
    text: str


def text_of(node: ast.expr) -> str | None:
    """A message as it is written, values in braces; None where it is made elsewhere."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else ast.unparse(v) for v in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (text_of(left) or "{left}") + (text_of(right) or "{right}")
        case ast.IfExp(body=body):
            return text_of(body)
    return None


def messages() -> Iterator[Message]:
    """Of `raise Error("...")` in all files; those whose text is a variable are written elsewhere."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Raise(exc=ast.Call(func=error, args=[first, *_])) if (text := text_of(first)) is not None:
                    yield Message(f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(error), text)


MESSAGES = list(messages())


def plain() -> Iterator[Message]:
    """Messages to users that name neither a value nor an argument nor the function."""
    for m in MESSAGES:
        if not (NAMED.search(m.text) or m.text.startswith(FUNCTIONS) or m.place.startswith(INSIDE)):
            yield m


def test_messages_are_found() -> None:
    assert len(MESSAGES) > 800 and any(m.error == "ConfigError" for m in MESSAGES)


def test_messages_name_an_argument_or_a_value() -> None:
    wrong = [m for m in plain() if m.text not in PLAIN]
    assert not wrong, "\n".join(f"{m.place}: {m.text}" for m in wrong)


def test_the_list_of_plain_messages_only_shrinks() -> None:
    assert not PLAIN - {m.text for m in plain()}


def test_messages_begin_with_a_noun_or_a_verb_and_are_more_than_a_phrase() -> None:
    wrong = [m for m in MESSAGES if m.text.lower().startswith(VAGUE) or len(m.text.split()) < 3 and "{" not in m.text]
    assert not wrong, "\n".join(f"{m.place}: {m.text!r}" for m in wrong)


def test_messages_state_the_expectation() -> None:
    """ "expected A, got B", not "wants A, not B"."""
    wrong = [m for m in MESSAGES if re.search(r"\bwants?\b", re.sub(r"\{.*?\}", "", m.text))]
    assert not wrong, "\n".join(f"{m.place}: {m.text!r}" for m in wrong)


def test_messages_have_no_double_spaces_and_no_stray_punctuation() -> None:
    wrong = [m for m in MESSAGES if re.search(r"[^ \n] {2,}[^ ]| [,:;.](?!\.)\s|!$|:$|,$", m.text)]
    assert not wrong, "\n".join(f"{m.place}: {m.text!r}" for m in wrong)
