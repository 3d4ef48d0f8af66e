"""Clients' segments that a device reads itself are locked while they are mapped, and no longer."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
import torch

from gt.transport.shm import ARENA, byte_array
from gt.worker.engine.torch import pinned_maps
from gt.worker.engine.torch.pinned_maps import PinnedMaps


class Driver:
    """CUDA's locks, by address."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses, self.locked, self.asked = refuses, dict[int, int](), 0

    def cudaHostRegister(self, address: int, length: int, flags: int) -> int:
        self.asked += 1
        if not self.refuses:
            self.locked[address] = length
        return self.refuses

    def cudaHostUnregister(self, address: int) -> int:
        with open("/proc/self/maps") as maps:
            assert any(line.startswith(f"{address:x}-") or f"{address:x}-" in line for line in maps), "it is still mapped"
        del self.locked[address]
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


def segment(maps: PinnedMaps, length: int) -> Any:
    file = os.memfd_create("test")
    os.ftruncate(file, length)
    try:
        return maps(file, length)
    finally:
        os.close(file)


def test_a_segment_is_locked_until_nothing_refers_to_it(driver: Driver) -> None:
    maps = PinnedMaps(torch.device("cpu"))
    mapped = segment(maps, 2 * ARENA)
    view = byte_array(mapped)[:8]
    assert driver.locked == {view.ctypes.data: 2 * ARENA}
    del mapped
    gc.collect()
    assert driver.locked, "an array refers to it"
    del view
    gc.collect()
    assert not driver.locked and maps.left == pinned_maps.LOCKED


def test_segments_of_small_tensors_and_more_than_the_most_are_not_locked(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_maps, "LOCKED", 5 * ARENA)
    maps = PinnedMaps(torch.device("cpu"))
    held = [segment(maps, n * ARENA) for n in (1, 2, 4, 3)]
    assert sorted(driver.locked.values()) == [2 * ARENA, 3 * ARENA]
    assert [bytes(mapped[:2]) for mapped in held] == [b"\0\0"] * 4
    assert maps.counts == {"locked": 2, "past the limit": 1}
    del held[1]
    gc.collect()
    held.append(segment(maps, 2 * ARENA))
    assert sorted(driver.locked.values()) == [2 * ARENA, 3 * ARENA]


def test_where_the_system_refuses_it_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(refuses=801)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    maps = PinnedMaps(torch.device("cpu"))
    held = [segment(maps, n * ARENA) for n in (2, 1, 2, 2)]
    assert driver.asked == 1 and len(held) == 4
    assert maps.counts == {"refused": 3}, "each large one is copied by the driver"
    del held
    gc.collect()
    assert driver.locked == {}
