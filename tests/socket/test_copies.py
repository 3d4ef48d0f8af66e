"""Large copies by several threads: all bytes are there on return, and nobody waits for a thread that has not begun."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from gt.transport.copies import CORES, MANY, MOST, PART, Copier, spare_threads


def copying_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "gt-copy"}


@pytest.mark.parametrize("threads", (0, 1, 3))
@pytest.mark.parametrize("n", (0, 1, MANY - 1, MANY, MANY + PART + 7, 20 * PART))
def test_all_bytes_are_there_when_it_returns(threads: int, n: int) -> None:
    data, target, copier = np.random.default_rng(n).integers(0, 255, n, np.uint8), np.zeros(n, np.uint8), Copier(threads)
    before = copying_threads()
    for _ in range(3):
        copier.copy(target, data)
        np.testing.assert_array_equal(target, data)
        target[:] = 0
    begun = copying_threads() - before
    assert len(begun) == (threads if n >= MANY else 0)
    copier.close()
    for thread in begun:
        thread.join(10)
    assert not copying_threads() - before


def test_a_thread_that_has_not_begun_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    data, target, copier = np.arange(MANY // 4, dtype=np.int32).view(np.uint8), np.zeros(MANY, np.uint8), Copier(1)
    copier.copy(target, data)
    np.testing.assert_array_equal(target, data)
    target[:] = 0
    late = copier._jobs().get()
    assert late is not None
    late()  # finds nothing left: the segment may be another load's by now
    assert not target.any()


def test_threads_help_where_there_are_cores_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 0), (2, 0), (CORES, 1), (2 * CORES, 2), (64 * CORES, MOST)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, n=cores: set(range(n)), raising=False)
        assert spare_threads() == threads
