"""Ctrl-C during changes of a client's state is raised behind them, by the part in C as by its reference in Python."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gt.transport.interrupts import NATIVE, Uninterrupted

CLASSES = [Uninterrupted, *([NATIVE.Uninterrupted] if NATIVE is not None else [])]


@pytest.fixture(params=CLASSES, ids=lambda cls: cls.__module__)
def mask(request: pytest.FixtureRequest) -> Iterator[Any]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
    yield request.param()
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_it_is_raised_at_the_end_of_the_outermost_body(mask: Any) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), mask:
        with mask:
            interrupt()
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]
    with pytest.raises(KeyboardInterrupt):
        interrupt()
    with mask:
        done.append("none came")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_is_raised_once_however_often_it_came_and_behind_an_error(mask: Any) -> None:
    with pytest.raises(KeyboardInterrupt) as raised, mask:
        interrupt()
        interrupt()
        raise ValueError("of the body")
    assert isinstance(raised.value.__context__, ValueError)
    with mask:
        pass


def test_a_handler_of_the_user_is_called_and_may_change_at_any_time(mask: Any) -> None:
    called: list[str] = []
    for name in ("one", "another"):
        signal.signal(signal.SIGINT, lambda number, frame, name=name: called.append(name))
        with mask:
            interrupt()
            called.append("body")
        interrupt()
    assert called == ["body", "one", "one", "body", "another", "another"]


def test_an_ignored_signal_stays_ignored(mask: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with mask:
        interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


ENDED = """
import signal
from gt.transport.interrupts import NATIVE, Uninterrupted
signal.signal(signal.SIGINT, signal.SIG_DFL)
with {}():
    signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize("name", ["Uninterrupted", *(["NATIVE.Uninterrupted"] if NATIVE is not None else [])])
def test_the_systems_own_handler_ends_the_process(name: str) -> None:
    assert subprocess.run([sys.executable, "-c", ENDED.format(name)]).returncode == -signal.SIGINT


OTHERS = """
import os, signal, threading
from gt.transport.interrupts import NATIVE, Uninterrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
mask, held, go = {}(), threading.Event(), threading.Event()
def other():
    with mask:
        held.set()
        go.wait()
    if not (child := os.fork()):  # its only thread is its main one
        try:
            with mask:
                signal.raise_signal(signal.SIGINT)
                done = 1
        except KeyboardInterrupt:
            os._exit(0 if done else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    print('child')
thread = threading.Thread(target=other)
thread.start()
held.wait()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print('main')
go.set()
thread.join()
"""


def test_another_threads_body_holds_nothing_back_and_may_fork() -> None:
    """In C: the reference takes the thread that imported it for the main one of a child, too."""
    if NATIVE is None:
        pytest.skip("the part in C was not built")
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", OTHERS.format("NATIVE.Uninterrupted")], stdout=subprocess.PIPE)
    assert made.stdout.split() == [b"main", b"child"]
