"""Tracebacks of failed instructions: the same text as Python's, without the frames."""

from __future__ import annotations

import traceback
import weakref
from typing import Any

import pytest

from gt.worker.client_values import failure
from gt.worker.tracebacks import SHOWN, Traceback


class Operand:
    """A value that a frame holds."""


def calls(depth: int, *operands: Any) -> None:
    if depth:
        calls(depth - 1, *operands)
    else:
        raise ValueError("no such value")


def raised(function: Any, *args: Any) -> Exception:
    try:
        function(*args)
    except Exception as error:
        return error
    raise AssertionError("it raises nothing")


def caused() -> None:
    try:
        calls(0)
    except ValueError as wrong:
        raise KeyError("a cause") from wrong


def handled() -> None:
    try:
        calls(0)
    except ValueError:
        raise KeyError("a context")  # noqa: B904


def silent() -> None:
    try:
        calls(0)
    except ValueError:
        raise IndexError from None


def noted() -> None:
    error = ValueError("two\nlines")
    error.add_note("and a note")
    raise error


@pytest.mark.parametrize("function", [lambda: calls(0), lambda: calls(2), caused, handled, silent, noted])
def test_the_text_is_the_end_of_python_s(function: Any) -> None:
    error = raised(function)
    marks = {"~", "^", " "}
    python = "".join(traceback.format_exception(error)[-SHOWN:]).splitlines()
    assert str(Traceback(error)).splitlines() == [line for line in python if not line or set(line) - marks]


def test_a_long_one_has_its_last_calls() -> None:
    lines = str(Traceback(raised(calls, 1))).splitlines()
    assert lines[-1] == "ValueError: no such value" and lines[-2].strip() == 'raise ValueError("no such value")'
    assert len(str(Traceback(raised(calls, 500))).splitlines()) <= 2 * SHOWN


def test_it_holds_no_operand() -> None:
    operand = Operand()
    gone = weakref.ref(operand)
    error = raised(calls, 1, operand)
    kept = failure("add", error, 3)
    del operand, error
    assert gone() is None and "no such value" in kept.text


def test_its_text_is_written_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose instructions fail by the thousand and who reads none of them costs little."""
    written: list[Any] = []
    from_list = traceback.StackSummary.from_list
    monkeypatch.setattr(traceback.StackSummary, "from_list", lambda calls: written.append(calls) or from_list(calls))
    broken = failure("add failed", raised(calls, 1), 3)
    assert not written and broken.reason == "add failed: ValueError: no such value"
    assert broken.text.startswith(f"{broken.reason}\n\nthere\n") and written
