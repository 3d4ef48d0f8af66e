"""Processes of a pool on this host. They outlive the command that started them; pid and start time identify them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from gt import environment
from gt.clusters import pool_file
from gt.clusters.pool_file import Pool
from gt.errors import ConnectionFailed

ROOT = str(Path(__file__).parents[2])
TAIL = 2000  # characters of a log that an error shows
DRAINED = 30.0  # seconds for processes to end after SIGTERM

_children: dict[int, subprocess.Popen] = {}  # children of this process, which has to reap them


def environment_of(pool: Pool, **more: str) -> dict[str, str]:
    """The environment of a pool's process, without the keys, which are in the pool's file."""
    secret = (environment.KEY.name, environment.WORKER_KEY.name)
    env = {k: v for k, v in os.environ.items() if k not in secret}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, env.get("PYTHONPATH", "")]))
    said = {environment.VERBOSE.name: environment.VERBOSE.text() or "1", environment.POOLS.name: str(pool_file.folder())}
    return {**env, **said, **more}


def start(pool: Pool, member: str, command: list[str], env: dict[str, str], follow: bool = False) -> dict[str, Any]:
    """Start a process in a session of its own, or with `follow` one that ends with this process, and return its handle."""
    log = pool_file.log_path(pool, member)
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as out:
        made = subprocess.Popen(
            command, stdin=subprocess.PIPE if follow else subprocess.DEVNULL, stdout=out, stderr=out, env=env,
            start_new_session=True,
        )  # fmt: skip
    _children[made.pid] = made
    return {"pid": made.pid, "born": _born(made.pid), "log": str(log)}


def _born(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def alive(handle: dict[str, Any]) -> bool:
    """Whether the process still runs; another process with a reused pid does not count."""
    child = _children.get(handle["pid"])
    if child is not None and child.poll() is not None:
        return False
    try:
        found = psutil.Process(handle["pid"])
        return found.create_time() == handle["born"] and found.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def end(handles: list[dict[str, Any]], timeout: float = DRAINED) -> None:
    """Send SIGTERM to processes and wait for them; after the timeout, kill them."""
    for handle in handles:
        if alive(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle["pid"], 15)
    until = time.monotonic() + timeout
    for handle in handles:
        while alive(handle) and time.monotonic() < until:
            time.sleep(0.01)
        if alive(handle):
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle["pid"], 9)
        child = _children.pop(handle["pid"], None)
        if child is not None:
            child.wait()
            if child.stdin:
                child.stdin.close()


def tail(handle: dict[str, Any]) -> str:
    """The last lines of a process's log."""
    with contextlib.suppress(OSError):
        return Path(handle["log"]).read_text(errors="replace")[-TAIL:].strip()
    return ""


def dispatcher_command(pool: Pool, *, host: str, port: int = 0, expect: int = 0, follow: bool = False) -> list[str]:
    path = str(pool_file.path_of(pool.name))
    command = [sys.executable, "-P", "-m", "gt.server", "--pool", path, "--host", host, "-p", str(port)]
    if expect:
        command += ["--expect", str(expect)]
    if pool.options.get("advertise"):
        command += ["--advertise", str(pool.options["advertise"])]
    if pool.options.get("plain_collectives"):
        command += ["--plain-collectives"]
    return command + (["--follow"] if follow else [])


def start_dispatcher(pool: Pool, *, host: str, follow: bool = False) -> None:
    """Start the dispatcher of a pool on this host and wait until it has written its address."""
    path = pool_file.path_of(pool.name)
    port = int(pool.options.get("port") or 0)
    command = dispatcher_command(pool, host=host, port=port, expect=pool.workers, follow=follow)
    pool.run = start(pool, "dispatcher", command, environment_of(pool), follow)
    try:
        pool.server = pool_file.await_server(path, 60.0, lambda: "" if alive(pool.run) else "it ended").server
    except ConnectionFailed as failed:
        end([pool.run], 1.0)
        raise ConnectionFailed(f"the dispatcher of pool {pool.name!r} did not start: {failed}\n{tail(pool.run)}") from None


def worker_options(pool: Pool, member: str) -> list[str]:
    """A worker's options on its command line, without the address of its pool."""
    options = ["--id", member, *(["--backend", pool.backend] if pool.backend else [])]
    return options + (["--plain-collectives"] if pool.options.get("plain_collectives") else [])


def next_member(pool: Pool) -> tuple[str, int]:
    """The name of the next worker, and the lowest free rank on its host."""
    pool.started += 1
    taken = {m.get("rank") for m in pool.members.values()}
    return f"{pool.name}-{pool.started - 1}", next(r for r in range(len(taken) + 1) if r not in taken)
