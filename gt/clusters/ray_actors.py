"""The Ray actor that supervises one process of a pool, a dispatcher or a worker. Ray restarts the actor when its node is lost;
the actor restarts its process when that ends, with the current dispatcher's address."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from gt.clusters import pool_file
from gt.clusters.pool_file import Pool
from gt.clusters.processes import ROOT

SPACE = "gt"  # the namespace of all actors of pools
PAUSE = 1.0  # seconds between a process's end and its next start
START_TIMEOUT = 120.0  # seconds for a process to write its address, or to find the dispatcher


class Keeper:
    """Keeps a process running. The process writes to this actor's log, which Ray's dashboard shows."""

    def __init__(self, role: str, member: str, record: bytes, options: list[str]) -> None:
        self.role, self.member, self.options = role, member, options
        self.pool = msgspec.json.decode(record, type=Pool)
        self.process: subprocess.Popen | None = None
        self.starts, self.stopping, self.server = 0, False, ""
        self.folder = tempfile.mkdtemp(prefix="gt-ray-")  # mode 700
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        while not self.stopping:
            try:
                self._run()
            except Exception as wrong:  # any failure is written to Ray's log, and the process is started again
                print(f"gt-ray: {self.member}: {type(wrong).__name__}: {wrong}", flush=True)
            time.sleep(PAUSE)

    def _run(self) -> None:
        import ray

        path = Path(self.folder) / f"{self.member}-{self.starts}.json"
        self.starts += 1
        here = ray.util.get_node_ip_address()
        self.pool.server = "" if self.role == "dispatcher" else self._dispatcher(ray)
        pool_file.write(self.pool, path)
        where = ["--host", "0.0.0.0", "-p", "0", "--advertise", here] if self.role == "dispatcher" else ["--id", self.member]
        module = "gt.server" if self.role == "dispatcher" else "gt.worker"
        command = [sys.executable, "-P", "-m", module, "--pool", str(path), "--follow", *where, *self.options]
        env = {**os.environ, "LOCAL_RANK": "0", "PYTHONPATH": ROOT, "GT_VERBOSE": "1"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
        try:
            self.server = pool_file.await_server(path, START_TIMEOUT, self._ended).server
            self.process.wait()
        finally:
            self.server = ""
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)

    def _ended(self) -> str:
        assert self.process is not None
        return "" if self.process.poll() is None else f"it ended with status {self.process.returncode}"

    def _dispatcher(self, ray: Any) -> str:
        """Wait for the address of the pool's dispatcher."""
        until = time.monotonic() + START_TIMEOUT
        while time.monotonic() < until and not self.stopping:
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                found = ray.get_actor(f"{self.pool.name}-dispatcher", namespace=SPACE)
                if server := ray.get(found.address.remote(), timeout=10):
                    return str(server)
            time.sleep(0.2)
        raise TimeoutError(
            f"no dispatcher of pool {self.pool.name} was found in Ray's namespace {SPACE!r} within {START_TIMEOUT:g} s"
        )

    def address(self) -> str:
        return self.server

    def state(self) -> dict[str, Any]:
        import ray

        running = self.process is not None and self.process.poll() is None
        node = ray.get_runtime_context().get_node_id()
        return {"running": running, "node": node, "host": ray.util.get_node_ip_address(), "starts": self.starts,
                "pid": self.process.pid if self.process else 0, "server": self.server}  # fmt: skip

    def stop(self, seconds: float) -> None:
        """End the process; a worker drains first."""
        self.stopping = True
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.process.kill()
