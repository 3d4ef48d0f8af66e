"""Who looks on ends nobody: logs on full disks and lines that nobody reads are lost, and the work goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from processes import Processes, free_port, until

import gt
from gt.client.here import here
from gt.transport.events import SAMPLED, Received, Watched
from gt.watch.listen import Listener

WORK = """
import sys, gt
if len(sys.argv) > 1: gt.connect(sys.argv[1])
x = gt.ones(4)
for i in range(20): x = (x + 1) - 1; assert x.tolist() == [1.0] * 4
print("fine", flush=True)
"""


def test_a_full_disk_ends_the_instruction_log_is_told_once_and_ends_nobody(processes: Processes) -> None:
    server, port = processes.server(GT_INSTRUCTION_LOG="/dev/full")
    processes.worker(port)
    for _ in range(2):
        script = processes.script(WORK, f"localhost:{port}")
        assert script.ended() == 0 and script.out == "fine\n", script.err
        until(lambda: "instruction log" in server.err, what="the end of the log")  # lines are held back for a moment
    told = [line for line in server.err.splitlines() if "instruction log" in line]
    assert len(told) == 1 and "/dev/full ends here" in told[0] and "No space left" in told[0], server.err


def test_an_auto_started_dispatcher_outlives_a_full_disk_too(processes: Processes) -> None:
    script = processes.script(WORK, GT_INSTRUCTION_LOG="/dev/full")
    assert script.ended() == 0 and script.out == "fine\n", script.err
    assert script.err.count("instruction log") == 1, script.err


def test_lines_that_cannot_be_written_end_neither_server_nor_worker_nor_client(processes: Processes) -> None:
    said = {
        "GT_VERBOSE": "1", "GT_DEBUG_CLIENT": "1", "GT_DEBUG_DISPATCHER": "1", "GT_DEBUG_WORKER": "1", "GT_DEBUG_COMPILE": "1"
    }  # fmt: skip
    within = ("sh", "-c", 'exec "$@" 2>/dev/full', "sh")
    port = str(free_port())
    made = [
        processes.start("-m", "gt.server", "-p", port, within=within, **said),
        processes.start("-m", "gt.worker", "-p", port, "--backend", "numpy", "--timeout", "30", within=within, **said),
        processes.start(
            "-c", WORK.replace("sys.argv[1])", "sys.argv[1], timeout=30)"), f"localhost:{port}", within=within, **said
        ),
    ]
    assert made[2].ended() in (0, 120) and made[2].out == "fine\n"  # 120: Python's own word on its standard error
    assert made[0].popen.poll() is None and made[1].popen.poll() is None


def test_an_unknown_host_is_told_in_one_line_and_differs_from_a_silent_one(processes: Processes) -> None:
    port = str(free_port())
    command = [sys.executable, "-P", "-m", "gt.worker", "--backend", "numpy", "-p", port, "--timeout", "0.5"]
    for host, told in (
        ("no-such-host.invalid", "unknown host 'no-such-host.invalid'"),
        ("localhost", "no dispatcher answered"),
    ):
        done = subprocess.run([*command, "--host", host], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and told in done.stderr, done.stderr


@pytest.mark.usefixtures("disconnected")
def test_a_client_tells_an_unknown_host_from_a_silent_one() -> None:
    with pytest.raises(gt.errors.ConnectionFailed, match="unknown host 'no-such-host.invalid'"):
        gt.connect("no-such-host.invalid:9000", timeout=0.5)
    with pytest.raises(gt.errors.ConnectionFailed, match="no dispatcher answered"):
        gt.connect(f"127.0.0.1:{free_port()}", timeout=0.5)


SELDOM = """
from gt.dispatcher import serve
serve.INTERVALS = (3600.0,) * len(serve.INTERVALS)
from gt.server.__main__ import main
main()
"""


def batches(received: list[Watched]) -> int:
    return sum(event.batches for watched in received for event in watched.events if isinstance(event, Received))


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize("seldom", [False, True], ids=["as it is", "once an hour"])
def test_events_of_many_batches_come_in_few_messages(processes: Processes, seldom: bool) -> None:
    """A message for each batch, with its acknowledgement, would cost a client that reads often a tenth of its speed: a
    dispatcher sends them at intervals."""
    port, received = free_port(), list[Watched]()
    server = processes.start(*(("-c", SELDOM) if seldom else ("-m", "gt.server")), "-p", str(port), GT_VERBOSE="1")
    until(lambda: "listening" in server.err, what="a listening server")
    processes.worker(port)
    gt.connect(f"localhost:{port}")
    x = gt.ones(4)
    x.numpy()
    with Listener(here().session.link.address, SAMPLED) as listener:
        for _ in range(300):
            (x + 1).numpy()
        if seldom:
            received += listener.take(0)
            assert len(received) <= 2, "that which greets, and the first"
        else:
            until(lambda: received.extend(listener.take(0)) or batches(received) >= 300, what="the events of all batches")
