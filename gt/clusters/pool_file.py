"""The record of a pool: a file of mode 600 by which the owner's commands, workers and clients find it. It contains the pool's
keys, so that no key appears on a command line or in a log."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from gt import environment
from gt.errors import ConfigError, ConnectionFailed
from gt.ownership import why_not_own
from gt.transport.auth import Keys

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")


class Pool(msgspec.Struct, kw_only=True):
    """The contents of a pool's file. `members` contains the cluster's handle of each worker, by name; `run` is the dispatcher's
    handle."""

    name: str
    cluster: str
    key: str
    worker_key: str
    server: str = ""  # host:port of the dispatcher, once it listens
    workers: int = 0  # requested number of workers
    backend: str = ""
    release: str = ""  # the version of GT that started the pool
    options: dict[str, Any] = {}
    members: dict[str, Any] = {}
    run: dict[str, Any] = {}
    scaler: dict[str, Any] = {}  # handle of the autoscaler's process, if any
    started: int = 0  # workers ever started; the next worker's number

    @property
    def keys(self) -> Keys:
        return Keys(self.key, self.worker_key)

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, {self.cluster!r}, {self.server!r}, workers={self.workers})"  # never the keys


def make(name: str, cluster: str, workers: int, backend: str = "", **options: Any) -> Pool:
    """A pool with new keys, not yet written to its file."""
    name = name or f"{cluster}-{secrets.token_hex(3)}"
    if not NAME.fullmatch(name):
        raise ConfigError(f"a pool cannot be called {name!r}: expected lower-case letters, digits and '-', 52 at most")
    if workers < 0:
        raise ConfigError(f"a pool of {workers} workers: expected 0 or more")
    key, worker_key = environment.KEY.value(), environment.WORKER_KEY.value()
    return Pool(
        name=name, cluster=cluster, key=key or secrets.token_hex(16), worker_key=worker_key or secrets.token_hex(16),
        workers=workers, backend=backend, options=options,
    )  # fmt: skip


def folder() -> Path:
    """The folder of this user's pool files: GT_POOLS, else a folder in the home directory, which hosts often share."""
    given = environment.POOLS.value()
    state = os.environ.get("XDG_STATE_HOME", "")
    found = Path(given) if given else Path(state or Path.home() / ".local" / "state") / "gt" / "pools"
    found.mkdir(mode=0o700, parents=True, exist_ok=True)
    if wrong := why_not_own(found):
        raise ConfigError(f"{wrong}, so others decide where this user's clients connect: make it yours alone, or set GT_POOLS")
    return found


def path_of(name: str) -> Path:
    """The file of a pool by its name, or by a path, which contains a '/'."""
    return Path(name) if "/" in name else folder() / f"{name}.json"


def log_path(pool: Pool, member: str) -> Path:
    """The log file of a pool's process, on the host that started it."""
    logs = folder() / f"{pool.name}.logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    return logs / f"{member}.log"


def create(pool: Pool) -> Path:
    """Write the file of a new pool. Two pools cannot have one name."""
    path = path_of(pool.name)
    part = _written(pool, path)
    try:
        os.link(part, path)  # atomic: no reader sees an empty file
    except FileExistsError:
        raise ConfigError(
            f"there is a pool {pool.name!r} already ({path}): choose another --name, or end it by `gt down {pool.name}`"
        ) from None
    finally:
        part.unlink()
    return path


def write(pool: Pool, path: Path) -> None:
    os.replace(_written(pool, path), path)  # atomic: a reader sees the new file or the previous one


def _written(pool: Pool, path: Path) -> Path:
    """Write a pool's record to a temporary file in the same folder."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(pool)))
        file.flush()
        os.fsync(file.fileno())  # other hosts read it
    return part


def parse(data: bytes | str, where: str) -> Pool:
    try:
        return msgspec.json.decode(data, type=Pool)
    except msgspec.MsgspecError as wrong:
        raise ConfigError(f"{where} is not the file of a pool: {wrong}") from None


def read(path: Path) -> Pool:
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            if mode & 0o077:
                raise ConfigError(f"{path} holds the keys of a pool and has mode {mode:o}: make it yours alone by `chmod 600`")
            if found.st_uid not in (os.geteuid(), 0):
                raise ConfigError(f"{path} belongs to user {found.st_uid}, and decides where clients connect: it must be yours")
            return parse(file.read(), str(path))
    except FileNotFoundError:
        raise ConnectionFailed(f"there is no pool {path.stem!r} ({path} is not there): {known()}") from None
    except OSError as wrong:
        raise ConnectionFailed(f"cannot read the pool {path}: {wrong.strerror}") from None


def names() -> list[str]:
    return sorted(p.stem for p in folder().glob("*.json"))


def known() -> str:
    there = names()
    return f"known pools are {', '.join(there)}" if there else "no pool is known, and `gt up local --workers 2` starts one"


def find(name: str = "") -> Pool:
    """The pool of this name, by default that of GT_POOL, or the only one."""
    name = name or environment.POOL.value()
    if not name:
        there = names()
        if len(there) != 1:
            raise ConnectionFailed(f"no pool was named{', and there are several' if there else ''}: {known()}")
        name = there[0]
    return read(path_of(name))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def changing(name: str) -> Iterator[Pool]:
    """A pool's record, locked against other writers and written back at the end of the block."""
    path = path_of(name)
    read(path)  # raises before the lock file of an unknown pool is created
    with _locked(path):
        pool = read(path)
        try:
            yield pool
        finally:
            if path.exists():
                write(pool, path)


def save(pool: Pool) -> None:
    """Write a newly started pool. An address that its dispatcher has written meanwhile is kept."""
    path = path_of(pool.name)
    with _locked(path):
        pool.server = pool.server or read(path).server
        write(pool, path)


def announce(path: Path, server: str) -> None:
    """Write a dispatcher's address to the pool's file."""
    with changing(str(path.absolute())) as pool:
        pool.server = server


def remove(pool: Pool) -> None:
    """Remove a pool's file. The logs of its processes stay."""
    path = path_of(pool.name)
    for gone in (path, path.with_suffix(".lock")):
        gone.unlink(missing_ok=True)


def await_server(
    path: Path, timeout: float, failed: Callable[[], str] = str, stale: Callable[[Pool], bool] = lambda pool: False
) -> Pool:
    """Wait for the dispatcher's address in a pool's file. `failed` returns a reason to give up, or ""; `stale` whether the
    address is an earlier dispatcher's."""
    until = time.monotonic() + timeout
    why = ""
    while True:
        if path.exists():
            pool = read(path)
            if pool.server and not stale(pool):
                return pool
        why = why or failed()
        if why or time.monotonic() > until:
            raise ConnectionFailed(why or f"no dispatcher has written its address to {path} within {timeout:g} s")
        time.sleep(0.05)
