"""Processes that stop for longer than any time-out, and hosts that fall silent. On one host the kernel tells who is there, so
stops are survived; between hosts silence counts, and is reported as silence."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest
from hosts import Hosts, possible
from processes import Processes, until

SHORT = "0.4"  # GT_TIMEOUT in these tests
WORKERS = "the key of these tests' workers"
STOP = 1.2  # seconds, several of those


@pytest.mark.parametrize("over", ["localhost", "tcp://127.0.0.1"])
def test_whoever_stops_on_one_host_for_longer_than_the_time_out_goes_on_afterwards(processes: Processes, over: str) -> None:
    server, port = processes.server("--insecure", GT_TIMEOUT=SHORT)
    worker = processes.worker(port, GT_TIMEOUT=SHORT)
    client = processes.script(
        """
        import sys, gt
        gt.connect(sys.argv[1])
        x = gt.ones(2)
        while True:
            x = x + 1
            print(int(x[0].item()), flush=True)
            if input(): break
        """,
        f"{over}:{port}",
        GT_TIMEOUT=SHORT,
    ).wait_for("2\n")
    expected = 2
    for stopped in ([worker], [server], [client], [client, worker, server]):
        for process in stopped:
            process.kill(signal.SIGSTOP)
        time.sleep(STOP)
        for process in stopped:
            process.kill(signal.SIGCONT)
        client.go()
        expected += 1
        client.wait_for(f"{expected}\n")
    assert "lost" not in server.err and "left" not in server.err


@pytest.mark.skipif(not possible(), reason="takes network namespaces, which this user may not make")
def test_between_hosts_silence_is_told_as_silence(processes: Processes) -> None:
    with Hosts(3) as hosts:
        key, server = {"GT_KEY": "a key of these tests", "GT_TIMEOUT": "2"}, hosts.addresses[0]
        command = ("-m", "gt.server", "-p", "9000", "--host", "0.0.0.0")
        made = processes.start(*command, within=hosts.within[0], GT_VERBOSE="1", GT_WORKER_KEY=WORKERS, **key)
        joined = ("-m", "gt.worker", "--host", server, "-p", "9000", "--backend", "numpy")
        worker = processes.start(*joined, within=hosts.within[1], GT_WORKER_KEY=WORKERS, **key)
        client = processes.start(
            "-c",
            "import gt, sys; gt.connect(sys.argv[1], timeout=30); x = gt.ones(2); x.numpy(); print('ready', flush=True)\n"
            "try:\n    while True: x.numpy(); input()\nexcept gt.errors.SessionLost as lost: print(lost, flush=True)",
            f"tcp://{server}:9000", within=hosts.within[2], **key,
        ).wait_for("ready")  # fmt: skip
        silenced = ["ip", "-n", hosts.switch, "link", "set"]
        subprocess.run([*silenced, "port0", "down"], check=True)
        client.go()
        client.wait_for("gave no sign of life for 2 s (GT_TIMEOUT)")
        assert worker.ended(20) == 0 and "gave no sign of life for 2 s (GT_TIMEOUT)" in worker.err, worker.err
        until(lambda: "was lost: its connection ended, or it gave no sign of life for 2 s" in made.err, what=made.err)
        for process in reversed(processes.all):
            process.close()
