"""A short soak; `make soak` is the long one."""

from __future__ import annotations

import tempfile

from processes import Processes
from soak import Soak, grown


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
