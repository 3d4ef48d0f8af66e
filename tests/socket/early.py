"""Scripts whose instructions are sent before Python has issued them, or never, against the same without, and with a worker that
dies."""

from __future__ import annotations

import json
from typing import Any

from processes import Processes

SENT = {"GT_LOCAL_ANSWERS": "0"}  # questions are sent


def with_and_without(
    processes: Processes, script: str, backend: str, variable: str = "GT_EARLY", **more: str
) -> tuple[list[Any], list[Any]]:
    """The JSON lines that a script prints with this variable set to 1 and to 0."""
    found = []
    for value in ("1", "0"):
        ran = processes.script(script, processes.pool(1, backend), **{**more, variable: value})
        assert ran.ended(120) == 0, ran.err[-3000:]
        found.append([json.loads(line) for line in ran.out.splitlines() if line != "begun"])
    return found[0], found[1]


def raises_when_its_worker_dies(processes: Processes, script: str, backend: str = "numpy") -> None:
    """Kill the worker of a script that never ends, once it has printed `begun`."""
    _, port = processes.server("--workers", "0")
    worker = processes.worker(port, backend=backend)
    ran = processes.script(script, f"localhost:{port}").wait_for("begun")
    worker.kill()
    assert ran.ended(60) == 1 and "WorkerLost" in ran.err, ran.err[-2000:]
