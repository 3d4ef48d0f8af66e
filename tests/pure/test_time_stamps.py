"""Entries and their times: the same in C and in Python."""

from __future__ import annotations

import gc
import time
import weakref
from array import array
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from gt.transport import time_stamps as module
from gt.transport.time_stamps import PythonTimeStamps, TimeStamps, time_stamps

FORMS: list[Callable[[Any], TimeStamps]] = [PythonTimeStamps]
FORMS += [module.NATIVE.TimeStamps] if module.NATIVE is not None else []
END = ("end", 7)


@pytest.fixture(params=FORMS, ids=lambda form: form.__module__.rpartition(".")[2])
def stamps(request: pytest.FixtureRequest) -> TimeStamps:
    """With a clock that tells 1, 2, 3 and so on."""
    made: TimeStamps = request.param(map(float, count(1)).__next__)
    return made


def taken(stamps: TimeStamps, n: int) -> tuple[list[Any], list[float]]:
    entries, starts = stamps.take(n)
    return entries, array("d", starts).tolist()


def test_an_entry_has_the_time_at_which_it_is_added(stamps: TimeStamps) -> None:
    assert stamps.add("a") == 1.0
    stamps.append("b", 0.5)
    assert len(stamps) == 2 and stamps.last() == ("b", 0.5)
    assert taken(stamps, 2) == (["a", "b"], [1.0, 0.5])
    assert len(stamps) == 0 and stamps.last() is None and taken(stamps, 2) == ([], [])


def test_an_instruction_is_noted_as_it_is_asked_for_and_the_end_behind_the_last(stamps: TimeStamps) -> None:
    code = stamps.over(iter(["a", "b"]), END)
    assert len(stamps) == 0 and stamps.ended is None
    assert next(code) == "a" and stamps.last() == ("a", 1.0)
    assert next(code) == "b" and stamps.last() == ("b", 2.0) and stamps.ended is None
    assert next(code, None) is None and stamps.last() == (END, 3.0) and stamps.ended is END
    assert next(code, None) is None and len(stamps) == 3, "the end is noted once"


def test_without_an_end_none_is_noted(stamps: TimeStamps) -> None:
    assert list(stamps.over(iter(["a"]), None)) == ["a"]
    assert stamps.last() == ("a", 1.0) and stamps.ended is None


def test_an_iterator_that_fails_has_no_end(stamps: TimeStamps) -> None:
    def fails() -> Iterator[str]:
        yield "a"
        raise ZeroDivisionError

    code = stamps.over(fails(), END)
    assert next(code) == "a"
    with pytest.raises(ZeroDivisionError):
        next(code)
    assert len(stamps) == 1 and stamps.ended is None


def test_a_part_is_taken_with_the_time_of_the_next_entry(stamps: TimeStamps) -> None:
    for entry in "abc":
        stamps.add(entry)
    assert taken(stamps, 2) == (["a", "b"], [1.0, 2.0, 3.0])
    assert stamps.last() == ("c", 3.0)
    stamps.replace_last("d")
    stamps.add("e")
    assert taken(stamps, 9) == (["d", "e"], [3.0, 4.0])


def test_many_entries_keep_their_order_and_are_given_back(stamps: TimeStamps) -> None:
    class Entry:
        pass

    entries = [Entry() for _ in range(5000)]
    seen = weakref.ref(entries[3])
    assert all(a is b for a, b in zip(stamps.over(iter(entries), None), entries))
    found, starts = taken(stamps, 4999)
    assert found == entries[:4999] and starts == [float(i) for i in range(1, 5001)] and len(stamps) == 1
    del found, entries
    assert seen() is None


def test_entries_go_with_the_stamps_and_a_clock_that_refers_to_them_is_collected() -> None:
    class Clock:
        stamps: Any = None

        def __call__(self) -> float:
            return 1.0

    for form in FORMS:
        clock = Clock()
        clock.stamps = form(clock)
        clock.stamps.add("a")
        seen = weakref.ref(clock)
        del clock
        gc.collect()
        assert seen() is None, form


def test_a_clock_that_raises_is_heard() -> None:
    def clock() -> float:
        raise ZeroDivisionError

    for form in FORMS:
        with pytest.raises(ZeroDivisionError):
            form(clock).add("a")
        with pytest.raises(ZeroDivisionError):
            next(form(clock).over(iter("a"), None))


def test_the_systems_clock_is_that_of_the_time_module() -> None:
    before = time.time()
    stamps = time_stamps(time.time)
    found = stamps.add("a")
    [told] = taken(stamps, 1)[1]
    assert before - 1e-6 <= found <= time.time() + 1e-6 and told == found


@pytest.mark.skipif(module.NATIVE is None, reason="not built, or disabled")
def test_wrong_arguments_of_the_part_in_c_raise() -> None:
    stamps = module.NATIVE.TimeStamps(None)
    for wrong in ((), ("a",), ("a", "b"), ("a", 1.0, 2.0)):
        with pytest.raises(TypeError):
            stamps.append(*wrong)
    for wrong in ((), (iter("a"),), ("a", None), (iter("a"), None, None)):
        with pytest.raises(TypeError):
            stamps.over(*wrong)
    with pytest.raises(TypeError):
        stamps.take("a")
    with pytest.raises(IndexError):
        stamps.replace_last("a")
    assert len(stamps) == 0
