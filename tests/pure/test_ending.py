"""A process that receives SIGTERM while Python is within a callback that cannot raise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from gt.launch import Children

CALLBACK = """
import os, signal, weakref
from gt.launch import end_when_told
class Row: pass
told, row = end_when_told(), Row()
finalizer = weakref.ref(row, lambda _: os.kill(os.getpid(), signal.SIGTERM))
del row
print("told", told())
class Bad:
    def __del__(self): raise ValueError("another fault is still told of")
Bad()
"""


def test_an_exit_within_a_callback_is_asked_for_and_prints_nothing() -> None:
    found = subprocess.run([sys.executable, "-c", CALLBACK], capture_output=True, text=True, cwd=os.getcwd())
    assert found.stdout == "told True\n" and "SystemExit" not in found.stderr, found.stderr
    assert "another fault" in found.stderr and found.returncode == 0


def test_elsewhere_the_exit_is_raised_at_once() -> None:
    script = "import os, signal; from gt.launch import end_when_told; end_when_told(); os.kill(os.getpid(), 15); print('on')"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=os.getcwd())
    assert (found.stdout, found.stderr, found.returncode) == ("", "", 0) and signal.SIGTERM == 15


class SlowToEnd:
    """A process that takes so many seconds to end after it is told to."""

    stdin = None

    def __init__(self, seconds: float) -> None:
        self.seconds, self.killed = seconds, False

    def terminate(self) -> None: ...

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None and timeout < self.seconds:
            raise subprocess.TimeoutExpired("gt", timeout)
        return 0


def test_a_server_has_time_to_write_its_logs_and_a_worker_in_a_long_kernel_is_killed() -> None:
    children, server, worker = Children(), SlowToEnd(10.0), SlowToEnd(10.0)
    children.processes = [server, worker]  # type: ignore[list-item]
    children.workers = [worker]  # type: ignore[list-item]
    children.close()
    assert worker.killed and not server.killed
