"""Starting GT's processes and seeing to their end: children live no longer than their parent, however it dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from gt.transport.addresses import NAMES
from gt.transport.auth import NO_KEYS, Keys
from gt.transport.debug_output import show

STARTS = 300.0  # seconds for processes that a client starts by itself to load: a cold disk or few cores may take long


def follow_parent(last: Callable[[], None] = lambda: None) -> None:
    """End when the parent does, after `last`, even when it is killed: its end of the pipe that is our standard input closes,
    or, where a fork of it still holds that, the kernel tells of its end. (The signal that a parent's death can be made to send
    comes when the thread that started us ends, which may be long before.)"""

    def watch() -> None:
        ends = select.poll()
        ends.register(0, select.POLLIN | select.POLLHUP)
        with contextlib.suppress(OSError, AttributeError):
            ends.register(os.pidfd_open(os.getppid()), select.POLLIN)
        with contextlib.suppress(OSError):
            while all(fd == 0 and os.read(0, 1) for fd, _ in ends.poll()):
                pass
        last()
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

    def lost(what: Any) -> None:
        if not (told and what.exc_type is SystemExit):  # else it ends when it next asks
            others(what)

    others, sys.unraisablehook = sys.unraisablehook, lost
    signal.signal(signal.SIGTERM, end)
    return lambda: bool(told)


def end_within(seconds: float, name: str) -> None:
    """End this process so many seconds after SIGTERM at the latest, also where its main thread never comes back from a library
    and so never sees the signal. The library must not hold Python's lock meanwhile, as none does that waits for a device."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a child's signals are not this process's

    def watch() -> None:
        while signal.SIGTERM not in os.read(told, 1):
            pass
        time.sleep(seconds)
        show(f"{name}: it ends, as it did not within {seconds:g} s of SIGTERM")
        NAMES.remove()
        os._exit(3)

    threading.Thread(target=watch, name="gt-end", daemon=True).start()


def drain_when_told(drain: Callable[[], None]) -> None:
    """Have SIGTERM call this, the next time; the one after that ends this process as before."""
    end = signal.getsignal(signal.SIGTERM)

    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, end)
        drain()

    signal.signal(signal.SIGTERM, first)


def ending() -> None:
    """All is closed: a later signal to end has no effect."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


AT_ONCE = 10.0  # seconds: a worker that fails sooner than that fails as soon as it is started
GIVE_UP = 5  # times in a row
WORKER_ENDS = 3.0  # seconds until a worker that was told to end is killed: it may be within a long kernel
SERVER_ENDS = 20.0  # the same of a server, which has its logs to write and may be slow to run on a busy machine


class Children:
    """Processes of ours that end with this object, or with this process."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen] = []
        self.workers: list[subprocess.Popen] = []
        self.servers: list[subprocess.Popen] = []  # workers that are servers, too
        self.closing, self.lock = False, threading.Lock()

    def start(self, module: str, *args: str, keys: Keys = NO_KEYS, **environment: str) -> subprocess.Popen:
        env = {**os.environ, "GT_KEY": keys.user, "GT_WORKER_KEY": keys.worker, **environment}
        where = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        named = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]  # an empty entry would mean the working directory
        env["PYTHONPATH"] = os.pathsep.join([where, *named])
        command = [sys.executable, "-P", "-m", module, *args]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env)
        self.processes.append(process)
        return process

    def worker(
        self, server: str, keys: Keys, backend: str | None, of: int = 1, rank: int = 0, name: str = "", **env: str
    ) -> subprocess.Popen:
        """A worker of this host; `of` workers share its cores."""
        host, _, port = server.rpartition(":")
        named = ["--id", name] if name else []
        return self._worker(["--host", host, "-p", port, *named], keys, backend, of, rank, **env)

    def auto_start(self, name: str, backend: str | None, workers: int, one_process: bool) -> subprocess.Popen:
        """A dispatcher, which is returned, and so many workers; in one process with its only worker, if that is asked for."""
        if not one_process:
            server = self.start("gt.server", "--auto", name, "--expect", str(workers))
            for rank in range(workers):
                self._worker(["--auto", name, "--timeout", f"{STARTS:g}"], NO_KEYS, backend, workers, rank)
            return server
        given = ["--auto", name, "--expect", "1", "--with-worker", *(["--backend", backend] if backend else [])]
        both = self.start("gt.server", *given, LOCAL_RANK="0")
        self.workers.append(both)
        self.servers.append(both)
        return both

    def _worker(self, where: list[str], keys: Keys, backend: str | None, of: int, rank: int, **env: str) -> subprocess.Popen:
        args = [*where, *(["--backend", backend] if backend else [])]
        if "--auto" in args:
            args += ["--id", "auto_worker" if of == 1 else f"auto_worker_{rank}"]
        environment: dict[str, Any] = {"LOCAL_RANK": str(rank), **env}
        if of > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // of))
        self.workers.append(self.start("gt.worker", *args, keys=keys, **environment))
        return self.workers[-1]

    def keep_worker(
        self, start: Callable[[], subprocess.Popen], tell: Callable[[str], None], joined: Callable[[int], bool]
    ) -> None:
        """Start a worker, and another in its place whenever it fails, until `close`. One that again and again fails as soon as
        it is started is given up, unless the process of this id had `joined`: a client's kernel may have ended it, and no
        client may take a worker from the others."""

        def watch(process: subprocess.Popen) -> None:
            failed = 0
            while True:
                began = time.monotonic()
                status = process.wait()
                failed = failed + 1 if time.monotonic() - began < AT_ONCE and not joined(process.pid) else 1
                with self.lock:
                    if self.closing or status == 0:
                        return
                    self.processes.remove(process)
                    if failed > GIVE_UP:
                        tell(f"a worker ended with status {status}, for the {failed}th time in a row: it is given up")
                        return
                    tell(f"a worker ended with status {status}: another is started in its place")
                    process = start()

        threading.Thread(target=watch, args=(start(),), name="gt-workers", daemon=True).start()

    def when_workers_end(self, tell: Callable[[str], None]) -> None:
        """Have it told when the last worker ended before `close`, from another thread."""

        def watch() -> None:
            for worker in self.workers:
                worker.wait()
            if not self.closing:
                tell(self.how_workers_ended())

        threading.Thread(target=watch, name="gt-workers", daemon=True).start()

    def how_workers_ended(self) -> str:
        """How they ended, if they do within a moment; else ""."""
        try:
            statuses = [str(worker.wait(WORKER_ENDS)) for worker in self.workers]
        except subprocess.TimeoutExpired:
            return ""
        return f"the workers started with it have ended (status {', '.join(statuses)})"

    def close(self) -> None:
        with self.lock:
            self.closing = True
        for process in self.processes:
            with contextlib.suppress(OSError):
                if process.stdin:
                    process.stdin.close()
                process.terminate()
        for process in self.processes:
            try:
                process.wait(WORKER_ENDS if process in self.workers and process not in self.servers else SERVER_ENDS)
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
