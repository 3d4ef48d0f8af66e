"""Time slices of the dispatcher's thread."""

from __future__ import annotations

import threading

import pytest
from processes import Processes

from gt.transport.short_slices import SLICE, slice_length, take_short_slices

pytestmark = pytest.mark.skipif(not slice_length(), reason="no slices for each thread here")
SCRIPT = """
    import sys, gt
    from gt.client.default import session
    gt.connect(sys.argv[1])
    print(session().ask("stats")["dispatcher"]["short_slices"])
"""


def test_a_thread_takes_short_slices_and_those_that_it_starts_do_not() -> None:
    found = []

    def work() -> None:
        found.append(take_short_slices())
        found.append(slice_length())
        inner = threading.Thread(target=lambda: found.append(slice_length()))
        inner.start()
        inner.join()

    thread, before = threading.Thread(target=work), slice_length()
    thread.start()
    thread.join()
    assert found == [True, SLICE, before] and before > SLICE
    assert slice_length() == before


def test_the_dispatcher_tells_whether_it_has_short_slices(processes: Processes) -> None:
    script = processes.script(SCRIPT, processes.pool(1))
    assert script.ended() == 0, script.err
    assert script.out.strip() == "True"
