"""`gt probe` tells the truth to Kubernetes, by which it takes pods for ready or starts them again."""

from __future__ import annotations

import signal

import pytest
from processes import Processes, free_port, until

from gt.cli import main

STAYS = "import gt, sys; gt.connect(sys.argv[1]); print('connected'); sys.stdin.read()"


def test_probes_of_servers_that_start_serve_are_full_hang_and_are_gone(
    processes: Processes, capsys: pytest.CaptureFixture
) -> None:
    port = free_port()
    at = ["--port", str(port), "--timeout", "3"]
    dispatcher, worker = ["probe", "dispatcher", *at], ["probe", "worker", *at, "--id", "w-0"]

    def probe(asked: list[str], *more: str, error: str = "") -> None:
        status, err = main([*asked, *more]), capsys.readouterr().err
        assert status == (1 if error else 0) and error in err, err

    probe(dispatcher, error="no dispatcher answered")
    server, _ = processes.server(port=port, GT_MAX_CLIENTS="1")
    probe(dispatcher)
    probe(worker, error="knows no worker 'w-0'")
    probe(worker, "--unless-unreachable", error="knows no worker 'w-0'")
    joined = processes.worker(port, "--id", "w-0")
    probe(worker)
    only = processes.script(STAYS, f"localhost:{port}").wait_for("connected")
    refused = processes.script(STAYS, f"localhost:{port}")
    assert refused.ended() == 1 and "this dispatcher is full" in refused.err
    probe(dispatcher)
    probe(worker)
    only.kill()
    server.kill(signal.SIGSTOP)
    probe(dispatcher, error="no dispatcher answered")
    probe(worker, error="no dispatcher answered")
    assert main([*worker, "--unless-unreachable"]) == 0, "that is not the worker's fault"
    server.kill(signal.SIGCONT)
    until(lambda: main(worker) == 0, what="an answer")
    joined.kill()
    until(lambda: main(worker) == 1, what="the worker's end")
    server.kill()
    server.ended()
    capsys.readouterr()
    probe(dispatcher, error="no dispatcher answered")
