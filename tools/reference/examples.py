"""Examples: those of docstrings, those written in examples.txt, else the first of some plain calls that runs."""

from __future__ import annotations

import ast
import contextlib
import doctest
import inspect
import io
import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gt

SETUP = """import gt
x = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
v = gt.tensor([0.5, 0.25, 0.75])
i = gt.tensor([3, 1, 2])
image = gt.arange(32.0).reshape(1, 2, 4, 4) / 32"""
# Plain calls, {0} being the name with its namespace.
CALLS = (
    "{0}(x)", "{0}(v)", "{0}(x, x)", "{0}(v, v)", "{0}(i)", "{0}(i, i)", "{0}(x, 2)", "{0}(x > 2)", "{0}(x > 2, x > 1)",
    "{0}(2, 3)", "{0}(4)", "{0}((x, x))", "{0}([x, x])", "{0}(image)", "{0}(image, 2)", "{0}(x, x, x)", "{0}()",
)  # fmt: skip
LINE, BLOCK = "image[0].reshape(2, 16)", "image[:, :, None].repeat(1, 1, 4, 1, 1)"
MODULES = (
    "{0}()(x)", "{0}(2)(x)", "{0}(2, 3)(x)", "{0}()(image)", "{0}(2)(image)", "{0}(2, 3, 3)(image)", "{0}()(x, x)",
    "{0}(1, 2)(image[0])", f"{{0}}(2, 3)({LINE})", f"{{0}}(2, 3, 3)({LINE})", f"{{0}}(2)({LINE})", "{0}(2)(image[None, 0])",
    f"{{0}}(2, 3, 3)({BLOCK})", f"{{0}}(2)({BLOCK})",
)  # fmt: skip
METHODS = (
    "x.{1}", "x.{1}()", "v.{1}()", "x.{1}(x)", "v.{1}(v)", "i.{1}()", "i.{1}(i)", "x.{1}(2)", "x.{1}(0, 1)",
    "(x > 2).{1}()", "(x > 2).{1}(x > 1)", "x.{1}(2, 2)", "x.{1}((2, 2))", "image.{1}()", "x.clone().{1}(x, x)",
)  # fmt: skip
OPTIMIZERS = ("p = x.clone().requires_grad_(); step = {0}([p], lr=0.1); (p * p).sum().backward(); step.step(); p",)
RATE = "step = gt.optim.SGD([x.clone().requires_grad_()]); rate = {0}(step%s); step.step(); rate.step(); rate.get_last_lr()"
SCHEDULES = (RATE % "", RATE % ", 2")
DISTRIBUTIONS = (
    "{0}(0.5).sample()", "{0}(1.0, 2.0).sample()", "{0}(v).sample()", "{0}(2.0, 3.0, 4.0).sample()",
    "{0}(gt.zeros(2), gt.eye(2)).sample()", "{0}()(v)",
)  # fmt: skip
ERRORS = ("issubclass({0}, Exception)",)


@dataclass(frozen=True)
class Example:
    lines: tuple[str, ...]  # the code
    printed: str

    def text(self) -> list[str]:
        return [*self.lines, *self.printed.rstrip("\n").splitlines()]


class Runner:
    """Runs examples one after the other, each with names of its own, random numbers from one seed."""

    PREAMBLE = ("On this page:", "", "```python", *SETUP.splitlines(), "```")

    def run(self, code: str) -> Example | None:
        """None where it raises."""
        names: dict[str, Any] = {}
        exec(SETUP, names)
        gt.manual_seed(0)
        out = io.StringIO()
        tree = ast.parse(code)
        lines = tuple(line for statement in tree.body for line in shown(ast.unparse(statement)))
        try:
            with contextlib.redirect_stdout(out), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for statement in tree.body[:-1]:
                    exec(compile(ast.Module([statement], []), "<example>", "exec"), names)
                last = tree.body[-1]
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), "<example>", "eval"), names)
                    if value is not None:
                        print(repr(value))
                else:
                    exec(compile(ast.Module([last], []), "<example>", "exec"), names)
        except Exception as failed:  # a plain call need not fit every function: the next form is tried
            self.why = f"{type(failed).__name__}: {failed}"
            return None
        return Example(lines, out.getvalue())

    def first(self, forms: Iterator[str | Example]) -> Example | None:
        for form in forms:
            ran = form if isinstance(form, Example) else self.run(form)
            if ran is not None and not useless(ran):
                return ran
        return None


def shown(statement: str) -> list[str]:
    """A statement as a session shows it: the first line, and its continuation lines after dots."""
    first, *rest = statement.splitlines()
    return [f">>> {first}", *(f"... {line}" for line in rest)]


def useless(ran: Example) -> bool:
    """Whether it shows the address of an object."""
    return " at 0x" in ran.printed or "<bound method" in ran.printed or "NotImplemented" in ran.printed


@cache
def written() -> dict[str, str]:
    """Examples by full name: `gt.addbmm: gt.addbmm(...)`, one a line, `;;` where a line of it ends."""
    lines = (Path(__file__).parent / "examples.txt").read_text().splitlines()
    found = dict(line.split(": ", 1) for line in lines if line and not line.startswith("#"))
    return {name: code.replace(" ;; ", "\n").replace("\\n", "\n") for name, code in found.items()}


def documented(found: Any) -> Example | None:
    """The example of a docstring as it stands, whose output tests/docs compares."""
    text = inspect.getdoc(found) or ""
    if not doctest.DocTestParser().get_examples(text):
        return None
    lines = text[text.index(">>>") :].splitlines()
    return Example(tuple(itertools.takewhile(str.strip, lines)), "")


def forms(prefix: str, name: str, found: Any) -> Iterator[str | Example]:
    full = f"{prefix}.{name}"
    if (known := written().get(full)) is not None:
        yield Example((f">>> {known[1:]}",), "") if known.startswith("!") else known
        return
    if (example := documented(found)) is not None:
        yield example
        return
    for form in templates(prefix, name, found):
        yield form.format(full, name)


def templates(prefix: str, name: str, found: Any) -> tuple[str, ...]:
    if prefix == "Tensor":
        return METHODS
    if isinstance(found, type):
        if issubclass(found, BaseException):
            return ERRORS
        by_base = {gt.nn.Module: MODULES, gt.optim.Optimizer: OPTIMIZERS, gt.optim.lr_scheduler.LRScheduler: SCHEDULES}
        return next((forms for base, forms in by_base.items() if issubclass(found, base)), (*CALLS, *DISTRIBUTIONS))
    return CALLS
