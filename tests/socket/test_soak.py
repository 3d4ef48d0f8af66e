"""A short soak; `make soak` is the long one."""

from __future__ import annotations

import tempfile

from processes import Processes
from soak import Soak, grown


def test_clients_and_workers_that_come_and_go_leave_sizes_descriptors_threads_and_files_as_they_were(
    processes: Processes,
) -> None:
    with tempfile.TemporaryDirectory() as sockets:
        soak = Soak(processes, 12, sockets)
        sizes = soak.run(warm=3)
        for process in reversed(processes.all):
            process.close()
    assert soak.rounds >= 1 and not grown(sizes, memory=40), sizes
