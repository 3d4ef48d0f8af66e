"""The first minutes of a user: workers that are still starting, servers without a worker, settings too late."""

from __future__ import annotations

import pytest
from processes import ROOT, Processes, free_port

STATS = """
import gt
gt.gpu_workers(2)
print(sorted(gt.debug.get_worker_stats()))
"""
TABLE = """
import gt
gt.debug.print_worker_stats()
"""
RECORD = """
import gt
with gt.debug.record() as timeline:
    gt.ones(2).exp().numpy()
print([span.name for span in timeline.spans])
"""
READ = "import sys, gt; gt.connect(sys.argv[1]); print((gt.ones(2) + 1).tolist())"


def test_stats_asked_for_at_once_are_those_of_all_workers_that_are_starting(processes: Processes) -> None:
    script = processes.script(STATS)
    assert script.ended() == 0 and script.out == "['auto_worker_0', 'auto_worker_1']\n", script.out + script.err


def test_the_second_line_of_a_script_prints_a_table_with_its_worker(processes: Processes) -> None:
    script = processes.script(TABLE)
    assert script.ended() == 0 and "auto_worker" in script.out and "numpy" in script.out, script.out + script.err


def test_recording_waits_for_a_worker_that_is_starting(processes: Processes) -> None:
    script = processes.script(RECORD)
    assert script.ended() == 0 and script.out == "['full', 'exp']\n", script.out + script.err


def test_gt_stats_waits_for_the_workers_that_the_server_starts(processes: Processes) -> None:
    port = free_port()
    processes.start("-m", "gt.server", "-p", str(port), "--workers", "2", "--backend", "numpy")
    from processes import until

    from gt.transport.addresses import ipc_address, listens

    until(lambda: listens(ipc_address(str(port))), what="the server listens")
    shown = processes.start("-m", "gt", "stats", f"localhost:{port}")
    assert shown.ended() == 0, shown.err
    assert shown.out.count("numpy") == 2, shown.out


def test_a_read_without_a_worker_warns_and_continues_when_one_comes(processes: Processes) -> None:
    _, port = processes.server()
    script = processes.script(READ, f"localhost:{port}")
    from processes import until

    until(lambda: "waits for a worker" in script.err, what="a line about it")
    assert "this read waits for a worker, and none has joined the dispatcher yet: start one with `gt-worker`" in script.err
    processes.worker(port)
    assert script.ended() == 0 and script.out == "[2.0, 2.0]\n" and script.err.count("waits for") == 1


LATE = """
import gt
gt.set_default_backend("numpy")
assert gt.tensor_ops.get_backend() == "python"
gt.ones(2).numpy()
gt.set_default_backend("numpy")
try:
    gt.set_default_backend("cpu")
except RuntimeError as late:
    print(late)
gt.disconnect()
gt.set_default_backend("cpu")
"""


def test_a_backend_that_is_set_after_the_first_op_is_an_error_and_before_it_reaches_tensor_ops(processes: Processes) -> None:
    script = processes.script(LATE, GT_BACKEND="")
    assert script.ended() == 0, script.err
    assert "GT is running with workers on numpy: call gt.set_default_backend('cpu') before the first op" in script.out


def test_the_error_of_a_silent_server_on_another_host_names_the_remedy(processes: Processes) -> None:
    worker = processes.start(
        "-m", "gt.worker", "--host", "127.0.0.2", "--backend", "numpy", "-p", str(free_port()), "--timeout", "0.2"
    )
    assert worker.ended() == 1
    assert "listens on its own host alone unless it is started with `--host 0.0.0.0 --key KEY`" in worker.err
    near = processes.start("-m", "gt.worker", "--backend", "numpy", "-p", str(free_port()), "--timeout", "0.2")
    assert near.ended() == 1 and "--host 0.0.0.0" not in near.err


def test_with_a_limit_a_read_that_no_worker_answers_is_an_error(processes: Processes) -> None:
    _, port = processes.server()
    script = processes.script(READ, f"localhost:{port}", GT_WAIT="0.5")
    assert script.ended() != 0
    assert "GTError: this read waited 0.5 s (GT_WAIT) for a worker, and none has joined" in script.err


SLOW = """
import sys, time
command = open("/proc/self/cmdline").read()
if WHICH in command: time.sleep(1.5)
"""
HASTY = "import gt.client.default as default; default.STARTING = 0.2; import gt; print((gt.ones(2) + 1).tolist())"


@pytest.mark.parametrize("one_process", ["0", "1"])
@pytest.mark.parametrize("which", ["gt.server", "gt.worker"])
def test_processes_of_a_script_that_load_for_long_are_waited_for_with_a_line(
    processes: Processes, which: str, one_process: str
) -> None:
    (processes.folder / "sitecustomize.py").write_text(SLOW.replace("WHICH", repr(which)))
    script = processes.start("-c", HASTY, PYTHONPATH=f"{processes.folder}:{ROOT}", GT_ONE_PROCESS=one_process)
    assert script.ended() == 0 and script.out == "[2.0, 2.0]\n", script.out + script.err
    if which == "gt.server":
        assert "gt: the dispatcher that this script started still loads, after 0.2 s" in script.err
    elif one_process == "0":
        assert "the workers that this script started still load" in script.err
