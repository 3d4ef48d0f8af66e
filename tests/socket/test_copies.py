"""Large copies by several threads: all bytes are there on return."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from gt.transport import copies
from gt.transport.copies import CORES, MANY, MOST, Copier, spare_threads

PART = 256 << 10  # as in copies.c
needs_native = pytest.mark.skipif(copies.NATIVE is None, reason="copies.c was not built")


@pytest.mark.parametrize("threads", (0, 1, 3))
@pytest.mark.parametrize("n", (0, 1, MANY - 1, MANY, MANY + PART + 7, 20 * PART))
def test_all_bytes_are_there_when_it_returns(threads: int, n: int) -> None:
    data, target, copier = np.random.default_rng(n).integers(0, 255, n, np.uint8), np.zeros(n, np.uint8), Copier(threads)
    for _ in range(3):
        copier.copy(target, data)
        np.testing.assert_array_equal(target, data)
        target[:] = 0


@needs_native
def test_threads_help_and_leave_targets_alone_that_are_full() -> None:
    data, targets = np.ones(64 * PART, np.uint8), np.zeros((8, 64 * PART), np.uint8)
    before = copies.NATIVE.helped()
    for _ in range(50):
        for target in targets:
            Copier(3).copy(target, data)
        targets[:-1] = 0  # a thread that came late would write into it
        assert not targets[:-1].any() and targets[-1].all()
        if copies.NATIVE.helped() > before:
            break
    assert copies.NATIVE.helped() > before


@needs_native
def test_copies_of_several_threads_at_a_time_are_right() -> None:
    rows = np.random.default_rng(0).integers(0, 255, (4, 12 * PART), np.uint8)
    targets = np.zeros_like(rows)

    def many(i: int) -> None:
        for _ in range(10):
            targets[i] = 0
            Copier(2).copy(targets[i], rows[i])

    threads = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(targets, rows)


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own() -> None:
    data, target = np.arange(MANY, dtype=np.uint8), np.zeros(MANY, np.uint8)
    Copier(2).copy(target, data)
    target[:] = 0
    if (child := os.fork()) == 0:
        Copier(2).copy(target, data)
        os._exit(0 if (target == data).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


@needs_native
def test_arrays_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot copy 3 bytes into 4"):
        copies.NATIVE.copy(np.zeros(4, np.uint8), np.zeros(3, np.uint8), 1)


def test_threads_help_where_there_are_cores_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 0), (2, 0), (3, 1), (4, 1), (8, 3), (64 * CORES, MOST)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, n=cores: set(range(n)), raising=False)
        assert spare_threads() == threads
