"""Processes of tests, forked from one that has loaded their modules: to load them anew is most of the CPU time of a test with
real processes. A fork has its own memory, session, standard streams, environment, arguments and end, as one that is executed;
processes that GT itself starts are executed, and so are those of tests about a start (`fresh`)."""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

# Variables that nothing reads while it loads: a fork may have other values of these and of GT's, and of no other.
LATE = ("PYTEST_CURRENT_TEST", "TEST_MARK", "TMPDIR", "WAY", "XDG_RUNTIME_DIR")
EARLY = "GT_NATIVE"  # the one of GT's that is read when GT is loaded

LOADED = {
    "numpy": ["gt.server.__main__", "gt.worker.process", "gt.client.default", "gt.client.functions", "gt.worker.engine.numpy"],
    "pytorch": ["torch.distributed", "gt.worker.engine.torch"],
}


def fixed(environment: dict[str, str]) -> dict[str, str]:
    """The variables that a fork has as they are."""
    return {k: v for k, v in environment.items() if k not in LATE and (not k.startswith("GT_") or k == EARLY)}


class Forked:
    """The part of a Popen that tests use."""

    def __init__(self, parent: Parent, pid: int, stdin: int) -> None:
        self.parent, self.pid, self.stdin = parent, pid, os.fdopen(stdin, "wb", buffering=0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.parent.receive()
            self.returncode = self.parent.ended.pop(self.pid, None)
        return self.returncode

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and word of that is still on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """The process that forks, as this process knows it."""

    def __init__(self, engine: str, environment: dict[str, str]) -> None:
        self.fixed, self.started, self.ended, self.rest = fixed(environment), list[int](), dict[int, int](), b""
        self.socket, theirs = socket.socketpair()
        modules = LOADED["numpy"] + (LOADED["pytorch"] if engine == "pytorch" else [])
        command = [sys.executable, "-u", __file__, str(theirs.fileno()), *modules]
        with theirs:
            self.popen = subprocess.Popen(command, env=self.fixed, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def close(self) -> None:
        self.socket.close()  # at which it ends
        self.popen.wait()

    def start(self, command: list[str], folder: Path, environment: dict[str, str], out: int, err: int) -> Forked:
        read, write = os.pipe()
        asked = json.dumps([command, str(folder), environment]).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read, out, err]))]
        self.socket.sendmsg([len(asked).to_bytes(4, "little")], rights)
        self.socket.sendall(asked)
        os.close(read)
        while not self.started:
            self.receive(block=True)
        return Forked(self, self.started.pop(), write)

    def receive(self, block: bool = False) -> None:
        """Note its lines: the process that was asked for, or one that ended and its exit status."""
        self.socket.setblocking(block)
        with contextlib.suppress(BlockingIOError):
            while True:
                more = self.socket.recv(65536)
                assert more, "the process that forks has ended"
                *lines, self.rest = (self.rest + more).split(b"\n")
                for pid, status in map(json.loads, lines):
                    if status is None:
                        self.started.append(pid)
                    else:
                        self.ended[pid] = status
                self.socket.setblocking(False)
        self.socket.setblocking(True)


PARENTS: dict[str, Parent] = {}


def start(command: list[str], folder: Path, environment: dict[str, str], out: int, err: int) -> Forked | None:
    """A process forked for this command of Python's, or None where it has to be executed."""
    if command[0] not in ("-c", "-m"):
        return None
    torch = (
        command[1] == "gt.worker" or "import torch" in command[1]
    )  # workers load it for collectives, whatever they compute by
    engine = "pytorch" if torch else "numpy"
    if engine not in PARENTS:
        PARENTS[engine] = Parent(engine, environment)
    parent = PARENTS[engine]
    return parent.start(command, folder, environment, out, err) if fixed(environment) == parent.fixed else None


def become(command: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """Make this fork the requested process, up to its main function."""
    os.setsid()
    os.chdir(folder)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = [command[0], *command[2:]]
    sys.orig_argv[:] = [sys.executable, *command]
    if command[:2] != ["-m", "gt.server"] and command[:2] != ["-m", "gt.worker"]:  # which leave the working directory out
        sys.path.insert(0, "" if command[0] == "-c" else folder)


def run(command: list[str]) -> None:
    if command[0] == "-m":
        sys.modules.pop(f"{command[1]}.__main__", None)  # which was loaded with the rest, and is run anew
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(command[1], "<string>", "exec"), main.__dict__)


def serve(ours: socket.socket) -> list[str] | None:
    """Fork on request and report ends. Returns in each fork, with its program's arguments, and None after the last request."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([ours, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                ours.sendall(json.dumps([ended[0], os.waitstatus_to_exitcode(ended[1])]).encode() + b"\n")
        if ours not in ready:
            continue
        head, streams, _, _ = socket.recv_fds(ours, 4, 3)
        if not head:
            return None
        asked = b""
        while len(asked) < int.from_bytes(head, "little"):
            asked += ours.recv(int.from_bytes(head, "little") - len(asked))
        command, folder, environment = json.loads(asked)
        if not (pid := os.fork()):
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (wake, woken):
                os.close(end)
            ours.close()
            become(command, folder, environment, streams)
            return command
        for stream in streams:
            os.close(stream)
        ours.sendall(json.dumps([pid, None]).encode() + b"\n")


if __name__ == "__main__":
    del sys.path[0]  # this file's folder
    for name in sys.argv[2:]:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a loaded module has started threads, and no fork would have them"
    gc.collect()
    gc.freeze()
    if (task := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        run(task)
