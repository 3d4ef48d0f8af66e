"""The table in which ops find their kinds, and each thread's scope: the entries that C caches equal Python's lookups."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest

import gt
from gt.client.here import here
from gt.client.kinds import Table
from gt.client.native import NATIVE
from gt.client.scope import HERE
from gt.testing import cluster
from tests.memory.collecting import collect


def test_more_kinds_than_the_cache_holds_compute_the_right_ops() -> None:
    with cluster(1, engine="numpy"):
        for _ in range(2):
            for n in range(1, 400):
                x = gt.full((n,), 2.0)
                assert (x * x + x).shape == (n,) and (x - 1).shape == (n,)
        assert float((x * x + x).sum()) == 6.0 * n


def test_kinds_that_were_forgotten_are_defined_again() -> None:
    with cluster(1, engine="numpy"):
        x = gt.ones(3)
        for _ in range(3):
            y = x * x
        kinds = here().session.kinds
        numbers = len(kinds.meaning)
        kinds.clear()
        y = y * x
        assert len(kinds.meaning) == numbers + 1 and y.tolist() == [1, 1, 1]


def test_a_number_keeps_its_dtype_when_the_default_changes() -> None:
    with cluster(1, engine="numpy"):
        i = gt.arange(3)
        for _ in range(3):
            assert (i / 2).dtype == gt.float32
        gt.set_default_dtype(gt.float64)
        try:
            assert (i / 2).dtype == gt.float64
        finally:
            gt.set_default_dtype(gt.float32)
        assert (i / 2).dtype == gt.float32


def test_each_thread_has_its_own_scope() -> None:
    turn, found, errors = threading.Barrier(2, timeout=30), {}, []

    def work(name: str, value: float) -> None:
        try:
            assert HERE.scope is None, "a thread begins without the scope of another"
            with cluster(1, engine="numpy"), gt.no_grad() if name == "off" else gt.enable_grad():
                x = gt.full((4,), value, requires_grad=True)
                for _ in range(200):
                    turn.wait()
                    y = x * x
                    assert y.requires_grad == (name == "on")
                found[name] = np.asarray(y.detach().numpy())
        except BaseException as error:  # told to the test
            errors.append(error)
            turn.abort()

    threads = [threading.Thread(target=work, args=each) for each in (("on", 2.0), ("off", 3.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    assert found["on"].tolist() == [4.0] * 4 and found["off"].tolist() == [9.0] * 4


def test_a_thread_that_ended_leaves_no_scope() -> None:
    class Mark:
        pass

    kept: list[weakref.ref] = []

    def work() -> None:
        mark = Mark()
        HERE.scope = mark  # type: ignore[assignment]
        kept.append(weakref.ref(mark))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert HERE.scope is not kept, "another thread asks"
    collect()
    assert kept[0]() is None


@pytest.mark.skipif(NATIVE is None, reason="a plain dict without the part in C")
def test_a_table_is_a_dict_that_the_collector_sees_through() -> None:
    class Mark:
        pass

    table, mark = Table(), Mark()
    table["self", 1] = [table, mark]
    seen = weakref.ref(mark)
    del table, mark
    collect()
    assert seen() is None
    table = Table()
    table["a",] = 1
    table.clear()
    assert table == {} and isinstance(table, dict)
