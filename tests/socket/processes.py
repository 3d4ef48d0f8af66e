"""Real processes for tests: started with ports of the OS's choice, waited for by condition, ended by their own ids."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil
import warm

from gt.environment import CLIENT, VARIABLES
from tests.conftest import VARIANTS

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds a condition may take on a busy machine; a shorter deadline would be a test of the machine
LAUNCH = 300.0  # the same for processes that Ray, SLURM or torchrun start: these load for many CPU seconds themselves
STRANGERS: set[int] = set()  # processes that no test started: a process keeps the environment that it began with
WAYS = ["memory", "gloo", "mail"]  # of collectives on one host, as GT_COLLECTIVES names them


def until(condition: Callable[[], object], timeout: float = PATIENCE, what: str = "") -> None:
    """Wait for a condition, or fail by name."""
    timeout, start = max(timeout, PATIENCE), time.monotonic()
    while not condition():
        waited = time.monotonic() - start
        assert waited < timeout, f"not within {timeout:g} s: {what or condition}"
        time.sleep(
            min(0.01 + waited / 20, 0.2)
        )  # a condition that asks a cluster takes CPU from the processes that it waits for


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A process and its output, which can be read while it runs."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str], within: tuple[str, ...], fresh: bool) -> None:
        self.out_path, self.err_path = (folder / f"{secrets.token_hex(4)}.{n}" for n in ("out", "err"))
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            forked = None if within or fresh else warm.start(command, folder, env, out.fileno(), err.fileno())
            self.popen = forked or subprocess.Popen(
                [*within, sys.executable, *command],
                stdin=subprocess.PIPE, stdout=out, stderr=err, env=env, cwd=folder, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    def wait_for(self, text: str, timeout: float = PATIENCE) -> Process:
        """Wait until it has written this on standard output."""
        until(lambda: text in self.out or self.popen.poll() is not None, timeout, f"{text!r} in {self.out!r} {self.err!r}")
        assert text in self.out, f"ended with {self.popen.returncode}: {self.out} {self.err}"
        return self

    def go(self) -> None:
        """Let a script that reads a line go on."""
        assert self.popen.stdin
        self.popen.stdin.write(b"\n")
        self.popen.stdin.flush()

    def ended(self, timeout: float = PATIENCE) -> int:
        """Its exit status."""
        return self.popen.wait(max(timeout, PATIENCE))

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, how)

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE)
        if self.popen.stdin:
            with contextlib.suppress(BrokenPipeError):  # a line that it did not read any more
                self.popen.stdin.close()


class Processes:
    """Everything a test starts. At its end all are gone, and so is all that they started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark, self.all = folder, secrets.token_hex(8), list[Process]()
        self.fresh = False  # whether all are executed, also where a fork of a process that has loaded GT would do (warm.py)
        self.files = folder / "tmp"  # where all that is started puts its files
        self.files.mkdir()

    def start(self, *command: str, within: tuple[str, ...] = (), fresh: bool = False, **environment: str) -> Process:
        """Start Python with this command line, by means of another command where it is to run `within` something."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GT_") or k in VARIANTS}
        path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
        env = {
            **kept,
            "PYTHONPATH": path,
            "TEST_MARK": self.mark,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # a crash is never silent
            "TMPDIR": str(self.files),
            **environment,
        }
        self.all.append(Process(list(command), self.folder, env, within, fresh or self.fresh))
        return self.all[-1]

    def server(self, *args: str, port: int | None = None, **environment: str) -> tuple[Process, int]:
        """A server that listens."""
        port = port or free_port()
        made = self.start("-m", "gt.server", "-p", str(port), *args, **{"GT_VERBOSE": "1", **environment})
        until(lambda: "listening" in made.err or made.popen.poll() is not None, what="a listening server")
        assert made.popen.poll() is None, made.err
        return made, port

    def worker(self, port: int, *args: str, backend: str = "numpy", **environment: str) -> Process:
        """A worker that has joined."""
        command = ["-m", "gt.worker", "-p", str(port), "--backend", backend, *args]
        made = self.start(*command, **{"GT_VERBOSE": "1", **environment})
        until(lambda: "is worker" in made.err or made.popen.poll() is not None, what="a worker that joined")
        assert made.popen.poll() is None, made.err
        return made

    def pool(self, workers: int, backend: str = "numpy", **environment: str) -> str:
        """Where a server with this many workers listens."""
        _, port = self.server("--expect", str(workers))
        for _ in range(workers):
            self.worker(port, backend=backend, **environment)
        return f"localhost:{port}"

    def script(self, code: str, *args: str, **environment: str) -> Process:
        """A script. Where it is given no server to connect to, it starts as a user's, and its workers compute by NumPy."""
        connects = any(re.fullmatch(r"\S+:\d+", arg) for arg in args)
        own = {k: "" for k in VARIANTS if CLIENT not in VARIABLES[k].readers} if connects else {"GT_BACKEND": "numpy"}
        return self.start("-c", textwrap.dedent(code), *args, fresh=not connects, **{**own, **environment})

    def running(self) -> list[psutil.Process]:
        """All processes that carry this test's mark, children of children too."""
        forked = {p.pid for p in self.all if isinstance(p.popen, warm.Forked) and p.popen.poll() is None}
        there, found = set(psutil.pids()), [psutil.Process(pid) for pid in forked]  # (whose first environment has no mark)
        STRANGERS.intersection_update(there)
        for pid in there - STRANGERS - forked:
            try:
                p = psutil.Process(pid)
                if p.environ().get("TEST_MARK") != self.mark:
                    STRANGERS.add(pid)
                elif p.status() != psutil.STATUS_ZOMBIE:
                    found.append(p)
            except psutil.NoSuchProcess:  # or a zombie, which has no environment any more
                continue
            except psutil.AccessDenied:
                STRANGERS.add(pid)
        return found

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in reversed(self.all):
            process.close()
        try:
            until(lambda: not self.running(), 20, "the end of all that was started")
        finally:
            for p in self.running():
                p.kill()


def listening(addresses: str) -> list[str]:
    """Which of these local addresses still have a socket."""
    there = Path("/proc/net/unix").read_text()
    return [a for a in addresses.split() if a.startswith("ipc://") and a.removeprefix("ipc://") in there]
