"""The seconds for which a thread had no core, by the system's count."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable

import pytest

from gt.worker.core_waits import CoreWaits, core_waits


def test_waits_for_a_core_are_counted_for_the_thread() -> None:
    waits, data = core_waits(), bytes(1 << 22)
    if not isinstance(waits, CoreWaits):
        pytest.skip("the system does not count them")
    hashed: Callable[[], object] = lambda: [hashlib.sha256(data) for _ in range(40)]  # without the interpreter's lock
    cores, before = os.sched_getaffinity(0), waits()
    os.sched_setaffinity(0, {min(cores)})  # of this thread, and of the one that it starts
    try:
        other = threading.Thread(target=hashed)
        other.start()
        hashed()
        other.join()
    finally:
        os.sched_setaffinity(0, cores)
    assert waits() > before + 1e-3, "two threads had one core"
