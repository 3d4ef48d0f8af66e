"""Starting GT's processes and seeing to their end: children live no longer than their parent, however it dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from gt.transport.addresses import NAMES
from gt.transport.auth import NO_KEYS, Keys


def follow_parent() -> None:
    """End when the parent does, even when it is killed: its end of the pipe that is our standard input closes, or, where a
    fork of it still holds that, the kernel tells of its end. (The signal that a parent's death can be made to send comes when
    the thread that started us ends, which may be long before.)"""

    def watch() -> None:
        ends = select.poll()
        ends.register(0, select.POLLIN | select.POLLHUP)
        with contextlib.suppress(OSError, AttributeError):
            ends.register(os.pidfd_open(os.getppid()), select.POLLIN)
        with contextlib.suppress(OSError):
            while all(fd == 0 and os.read(0, 1) for fd, _ in ends.poll()):
                pass
        NAMES.remove()
        os._exit(0)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a prompt is the client's; the server lives on
    threading.Thread(target=watch, daemon=True).start()


def end_when_told() -> Callable[[], bool]:
    """Exit on SIGTERM. Gives whether it came: an exit raised in code that was called from C, such as a destructor, is lost, so
    whoever waits in a loop has to ask."""
    told: list[int] = []

    def end(number: int, frame: object) -> None:
        told.append(number)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    return lambda: bool(told)


def ending() -> None:
    """All is closed: what tells us to end now has nothing left to tell."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Children:
    """Processes of ours that end with this object, or with this process."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []
        self.workers: list[subprocess.Popen] = []
        self.closing = False

    def start(self, module: str, *args: str, keys: Keys = NO_KEYS, **environment: str) -> subprocess.Popen:
        env = {**os.environ, "GT_KEY": keys.user, "GT_WORKER_KEY": keys.worker, **environment}
        where = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        named = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]  # an empty entry would mean the working directory
        env["PYTHONPATH"] = os.pathsep.join([where, *named])
        command = [sys.executable, "-P", "-m", module, *args]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
        self.processes.append(process)
        return process

    def worker(self, server: str, keys: Keys, backend: str | None, of: int = 1, rank: int = 0, **env: str) -> subprocess.Popen:
        """A worker of this host; `of` workers share its cores."""
        host, _, port = server.rpartition(":")
        return self._worker(["--host", host, "-p", port], keys, backend, of, rank, **env)

    def auto_worker(self, name: str, backend: str | None, of: int = 1, rank: int = 0) -> subprocess.Popen:
        return self._worker(["--auto", name], NO_KEYS, backend, of, rank)

    def _worker(self, where: list[str], keys: Keys, backend: str | None, of: int, rank: int, **env: str) -> subprocess.Popen:
        args = [*where, *(["--backend", backend] if backend else [])]
        if "--auto" in args:
            args += ["--id", "auto_worker" if of == 1 else f"auto_worker_{rank}"]
        environment: dict[str, Any] = {"LOCAL_RANK": str(rank), **env}
        if of > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // of))
        self.workers.append(self.start("gt.worker", *args, keys=keys, **environment))
        return self.workers[-1]

    def when_workers_end(self, tell: Callable[[str], None]) -> None:
        """Have it told when the last worker ended before `close`, from another thread."""

        def watch() -> None:
            statuses = [str(worker.wait()) for worker in self.workers]
            if not self.closing:
                tell(f"the workers started with it have ended (status {', '.join(statuses)})")

        threading.Thread(target=watch, name="gt-workers", daemon=True).start()

    def close(self) -> None:
        self.closing = True
        for process in self.processes:
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
                process.terminate()
        for process in self.processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def abandon(self) -> None:
        """In a forked child: these are its parent's to end, and to wait for."""
        self.closing = True
        for process in self.processes:
            process.returncode = 0 if process.returncode is None else process.returncode
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()  # a copy: they see the parent's end while this process lives

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
