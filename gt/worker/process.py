"""A worker's process: its engine, its dispatcher, and serving until the end. It says what goes wrong on standard error."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from gt import backends, environment
from gt.clusters import pool_file, ranks
from gt.errors import GTError
from gt.launch import drain_when_told, ending
from gt.transport.addresses import NAMES, address_of, advertised, ipc_address, with_port
from gt.transport.auth import Keys, kept_worker_key
from gt.transport.debug_output import said, show, trace
from gt.worker.engine import Engine
from gt.worker.engine.choose import make
from gt.worker.serve import Shell

POOL_STARTS = 600.0  # seconds that a pool's dispatcher may take to start: it may wait in a queue, too


def run(args: argparse.Namespace, told: Callable[[], bool]) -> int:
    """Work until the dispatcher goes or until `told`; the exit status."""
    meeting = None
    try:
        meeting = take_rank(args)
        shell = connect(args, make_engine(args))
    except (GTError, ValueError) as failed:
        show(f"gt-worker: {failed}")
        if meeting is not None:
            meeting.close()
        return 1
    if not args.auto and environment.DRAIN.value():
        drain_when_told(shell.drain)
    try:
        return serve(shell, told)
    finally:
        shell.close()
        ending()
        if meeting is not None:
            meeting.close()
        leave()


def make_engine(args: argparse.Namespace) -> Engine:
    remarks = environment.check([environment.WORKER])
    for remark in remarks if not args.auto else ():  # the client that starts a worker by itself has said it
        show(f"gt-worker: {remark}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # said below, as everything is that a worker says
        engine = make(*wanted(args))
    for name, reason in engine.fell_back.items():
        show(f"gt-worker: backend {name!r} is not available: {reason}; falling back to {engine.name!r}")
    if engine.device == "cpu":
        bound_memory(args.memory or room())
    return engine


def connect(args: argparse.Namespace, engine: Engine) -> Shell:
    """Find the dispatcher, and join it."""
    if args.pool:
        find_pool(args)
    Keys(args.key, args.worker_key).check()
    where = f"{args.host}:{args.port}" if "://" in args.host else with_port(args.host or "localhost", args.port)
    address = ipc_address(args.auto) if args.auto else address_of(where, args.timeout)
    known = keys(args)  # after a server that is still starting has listened: it writes its workers' key before
    batch = environment.WORKER_BATCH_SIZE.value()
    see = trace("gt-worker", environment.DEBUG_WORKER.value())
    say = said("gt-worker", environment.DEBUG_COMPILE.value())
    shell = Shell(address, engine, known, args.id, args.timeout, see, batch, say, args.plain_collectives, args.advertise)
    if environment.DEBUG_PROGRAMS.value():
        shell.core.definitions.show = lambda stage, program: show(f"gt-worker: {stage}\n{program}")
    if environment.VERBOSE.value():
        shell.core.tell = lambda line: show(f"gt-worker: {line}")
        show(f"gt-worker: {shell.core.name} is worker {shell.core.index}: {engine.name} on {engine.device}")
    return shell


def serve(shell: Shell, told: Callable[[], bool]) -> int:
    try:
        shell.run(until=told)
        if shell.ended:
            show(f"gt-worker: {shell.ended}")
        if shell.spoilt:
            NAMES.remove()
            os._exit(3)  # the device's own library may wait for ever in a regular end
    except KeyboardInterrupt:
        pass
    except SystemExit as end:
        if isinstance(end.code, str):
            show(f"gt-worker: {end.code}")
            return 1
    return 0


def bound_memory(most: int) -> None:
    """Have the kernel refuse what there is no room for, so that it is an error of that tensor: left to itself it promises
    any amount and ends the process when the promise is called in."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def room() -> int:
    """Bytes of memory that this process may hope for."""
    import psutil

    found = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def wanted(args: argparse.Namespace) -> tuple[str | None, tuple[str, ...]]:
    """The backend and its fallbacks: as said here, else by the environment, else by the configuration."""
    named = args.fallback_backends
    fallbacks = backends.fallbacks() if named is None else tuple(n.strip() for n in named.split(",") if n.strip())
    return args.backend or backends.asked_for(), fallbacks


def keys(args: argparse.Namespace) -> Keys:
    """The users' key and the workers'. That of a server of this user on this host need not be said."""
    return Keys(args.key, args.worker_key or (kept_worker_key(args.port) if args.key else "")).check()


def take_rank(args: argparse.Namespace) -> ranks.Meeting | None:
    """Where a launcher started this worker: find the dispatcher, which the first rank hosts unless another one was named."""
    if not args.launcher:
        return None
    rank = ranks.rank_of(args.launcher)
    args.id = f"{args.id}-{rank.rank}" if args.id else ""
    if args.host:  # one that somebody else has started, with the keys of the environment
        os.environ["LOCAL_RANK"] = str(rank.local)
        return None
    meeting = ranks.meet(rank, args.pool or "", args.backend or "", advertised(args.advertise)[0] if args.advertise else "")
    args.pool = str(meeting.path)
    return meeting


def find_pool(args: argparse.Namespace) -> None:
    """Take address and keys from a pool's file, once its dispatcher has written where it is."""
    if args.pool == "-":
        pool = pool_file.parse(sys.stdin.readline(), "standard input")
    else:
        pool = pool_file.await_server(Path(args.pool), max(args.timeout, POOL_STARTS))
    args.host, _, port = pool.server.rpartition(":")
    args.port, args.key, args.worker_key = int(port), pool.key, pool.worker_key


def leave() -> None:
    """End at once, where the end of Python would wait for a compilation that nobody needs any more."""
    compiler = sys.modules.get("gt.worker.engine.torch.inductor")
    if compiler is not None and compiler.busy():
        NAMES.remove()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
