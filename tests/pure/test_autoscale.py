"""When a pool grows and shrinks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gt.errors import ConfigError, GTError
from gt.pools import cli
from gt.pools.autoscale import Autoscaler


def stats(busy: float, queue: int = 0, workers: int = 2) -> dict:
    return {f"w{i}": {"busy_seconds": busy, "queue": queue} for i in range(workers)}


def test_busy_workers_for_long_enough_get_company() -> None:
    scaler = Autoscaler(1, 4, up_after=10)
    assert [scaler.look(t, 2, stats(busy=t)) for t in (0, 5, 10, 14)] == [2, 2, 2, 2]
    assert scaler.look(15, 2, stats(busy=15)) == 3


def test_a_long_queue_counts_as_busy_however_little_was_computed() -> None:
    scaler = Autoscaler(1, 4, up_after=10)
    assert [scaler.look(t, 2, stats(0, queue=5000)) for t in (0, 5, 15)] == [2, 2, 3]


def test_a_pause_begins_the_wait_anew_and_the_most_is_kept() -> None:
    scaler = Autoscaler(1, 2, up_after=10)
    busy = [(0, 0.0), (5, 5.0), (10, 5.0), (15, 10.0), (20, 15.0), (30, 25.0)]
    assert [scaler.look(t, 1, stats(b, workers=1)) for t, b in busy] == [1, 1, 1, 1, 1, 2]
    assert [scaler.look(t, 2, stats(t)) for t in (40, 60, 80)] == [2, 2, 2]


def test_idle_workers_are_given_back_one_at_a_time_down_to_the_fewest() -> None:
    scaler = Autoscaler(1, 4, down_after=60)
    assert [scaler.look(t, 3, stats(7.0, workers=3)) for t in (0, 1, 60)] == [3, 3, 3]
    assert scaler.look(61, 3, stats(7.0, workers=3)) == 2
    assert [scaler.look(t, 2, stats(7.0)) for t in (62, 120, 121)] == [2, 2, 1]
    assert scaler.look(500, 1, stats(7.0, workers=1)) == 1


def test_nothing_is_decided_while_workers_have_yet_to_come() -> None:
    scaler = Autoscaler(1, 8, up_after=0)
    assert [scaler.look(t, 3, stats(busy=t)) for t in (0, 5, 10)] == [3, 3, 3]
    with pytest.raises(ConfigError, match="from 0 to 4"):
        Autoscaler(0, 4)


def test_only_gt_s_own_errors_stand_for_a_dispatcher_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's deadline, such as an alarm's TimeoutError, is none of them."""
    pool = SimpleNamespace(name="p", server="localhost:9000")

    def raises(error: Exception) -> Any:
        def connect(name: str) -> None:
            raise error

        monkeypatch.setattr(cli, "connect", connect)
        monkeypatch.setattr(cli, "disconnect", lambda: None)
        return cli.joined_workers(pool)  # type: ignore[arg-type]

    assert raises(GTError("no answer about stats within 10 s")) == "no answer about stats within 10 s"
    with pytest.raises(TimeoutError, match="the alarm"):
        raises(TimeoutError("the alarm"))
