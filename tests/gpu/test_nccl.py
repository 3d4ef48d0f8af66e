"""Collectives over NCCL, on one GPU: each worker takes itself for one on another host and with another GPU, since NCCL has no
more than one member on a GPU of a host. Bytes then go through NCCL's sockets."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

SOCKET = Path(__file__).parents[1] / "socket"
WORKER = """
import os, sys
os.environ |= {"NCCL_HOSTID": f"host-{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
from gt.worker.collectives import groups
groups.gpu_of = lambda engine: f"gpu-{os.getpid()}"
from gt.worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_programs_on_shards_give_the_right_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOCKET))
    processes, program = importlib.import_module("processes"), importlib.import_module("test_sharded").PROGRAM
    port = str(processes.free_port())
    quiet = {"stdin": subprocess.DEVNULL, "text": True, "stderr": subprocess.PIPE}
    commands = [["-m", "gt.server", "-p", port, "--expect", "2"], *[["-c", WORKER, "-p", port, "--backend", "pytorch"]] * 2]
    started = [subprocess.Popen([sys.executable, *c], **quiet) for c in commands]  # type: ignore[call-overload]
    try:
        from gt.transport.addresses import ipc_address, listens

        processes.until(lambda: listens(ipc_address(port)), what="the server listens")
        client = subprocess.run(
            [sys.executable, "-c", program, f"localhost:{port}"], env={**os.environ, "WAY": "nccl"}, capture_output=True,
            text=True, timeout=120,
        )  # fmt: skip
    finally:
        for process in started:
            process.terminate()
        said = [process.communicate()[1][-3000:] for process in started]
    assert client.returncode == 0, (client.stdout, client.stderr[-3000:], said)
    assert client.stdout == "[True, True] Shard(0) on [0, 1] fine\n"
