"""The end of a process that does not come to the signal that asks for it."""

from __future__ import annotations

import subprocess
import sys

STUCK = """
import ctypes, signal
from gt.launch import end_within
signal.signal(signal.SIGTERM, lambda *_: None)  # it may come before the first thread is stuck
end_within(0.1, "gt-worker")
lock, library = ctypes.create_string_buffer(256), ctypes.CDLL(None)
print("up", flush=True)
for _ in range(2):
    library.pthread_mutex_lock(lock)  # the second time for ever, and no signal ends it
"""


def test_a_process_whose_main_thread_is_stuck_in_a_library_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as stuck:
        try:
            assert stuck.stdout is not None and stuck.stdout.readline() == "up\n"
            stuck.terminate()
            _, text = stuck.communicate(timeout=60)
        finally:
            stuck.kill()
    assert stuck.returncode == 3 and text == "gt-worker: it ends, as it did not within 0.1 s of SIGTERM\n"


FORKED = """
import os, signal, time
from gt.launch import end_when_told, end_within
end_when_told()
end_within(0.1, "gt-worker")
if not (child := os.fork()):
    os.kill(os.getpid(), signal.SIGTERM)
os.waitpid(child, 0)
time.sleep(1)
print("on")
"""


def test_a_signal_of_a_forked_child_is_not_its_parent_s() -> None:
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.stderr, found.returncode) == ("on\n", "", 0)
