"""A short soak; `make soak` is the long one."""

from __future__ import annotations

import random
import tempfile

import pytest
from processes import Processes
from soak import OWN, Sizes, Soak, grown, rising, slopes


def test_clients_and_workers_that_come_and_go_leave_sizes_descriptors_threads_and_files_as_they_were(
    processes: Processes,
) -> None:
    with tempfile.TemporaryDirectory() as sockets:
        soak = Soak(processes, 0, sockets)
        soak.round()
        first = soak.sizes()
        for _ in range(4):  # eight clients, of which each would leave more than one descriptor
            soak.round()
        last = soak.sizes()
        for process in reversed(processes.all):
            process.close()
    sizes = {name: (first[name], last[name]) for name in first}
    assert not grown(sizes, memory=40), sizes


def history(rise: float, level_at: int = 0, rounds: int = 7400) -> list[tuple[int, Sizes]]:
    """Samples of an hour in which a dispatcher's memory rises by so many KB a round, up to a round at which it is level."""
    rng, marks = random.Random(0), range(1, rounds + 1, rounds // 60)
    risen = [rise * (min(mark, level_at) if level_at else mark) for mark in marks]
    return [(mark, {f"{OWN} of the dispatcher": 20_000 + more + rng.gauss(0, 60)}) for mark, more in zip(marks, risen)]


@pytest.mark.parametrize(
    ("rise", "level_at", "found"),
    [(0.3, 0, True), (0.2, 0, True), (0.0, 0, False), (0.02, 0, False), (0.3, 3000, False), (2.0, 300, False)],
)
def test_memory_that_rises_in_the_later_half_is_found(rise: float, level_at: int, found: bool) -> None:
    assert bool(rising(slopes(history(rise, level_at)))) == found


def test_a_short_soak_is_not_judged_by_its_slope() -> None:
    assert slopes(history(5.0, rounds=300)) == {}
