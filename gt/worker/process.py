"""A worker's process: makes the engine, joins the dispatcher and serves until the end. Errors go to standard error."""

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
from gt.worker.dispatcher_socket import Connect, DispatcherSocket
from gt.worker.engine import Engine
from gt.worker.engine.choose import make
from gt.worker.serve import Shell

THREADS = 256 << 20  # bytes for a worker's threads and messages
POOL_STARTS = 600.0  # seconds for a pool's dispatcher to start: its job may wait in a queue


def run(
    args: argparse.Namespace, told: Callable[[], bool], connection: Connect = DispatcherSocket,
    last: Callable[[], None] = lambda: None,
) -> int:  # fmt: skip
    """Serve until the dispatcher ends or `told()` is true. Returns the exit status; `last` is called before an end without
    cleaning up."""
    meeting = None
    try:
        meeting = take_rank(args)
        shell = connect(args, make_engine(args), connection)
    except (GTError, ValueError) as failed:
        show(f"gt-worker: {failed}")
        if meeting is not None:
            meeting.close()
        return 1
    if not args.auto and environment.DRAIN.value():
        drain_when_told(shell.drain)
    try:
        return serve(shell, told, last)
    finally:
        shell.close()
        ending()
        if meeting is not None:
            meeting.close()
        leave()


def make_engine(args: argparse.Namespace) -> Engine:
    remarks = environment.check([environment.WORKER])
    for remark in remarks if not args.auto else ():  # the client that starts its own worker has printed it
        show(f"gt-worker: {remark}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # shown below, in the form of a worker's messages
        engine = make(*wanted(args))
    for name, reason in engine.fell_back.items():
        show(f"gt-worker: backend {name!r} is not available: {reason}; falling back to {engine.name!r}")
    if engine.device == "cpu":
        bound_memory(args.memory or room())
        # Inductor would start a process for each core, each of which loads PyTorch, to compile the few functions of a program.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    return engine


def connect(args: argparse.Namespace, engine: Engine, connection: Connect = DispatcherSocket) -> Shell:
    """Find the dispatcher, and join it."""
    if args.pool:
        find_pool(args)
    Keys(args.key, args.worker_key).check()
    where = f"{args.host}:{args.port}" if "://" in args.host else with_port(args.host or "localhost", args.port)
    address = ipc_address(args.auto) if args.auto else address_of(where, args.timeout)
    known = keys(args)  # after the server listens: it writes its workers' key before that
    batch = environment.WORKER_BATCH_SIZE.value()
    see = trace("gt-worker", environment.DEBUG_WORKER.value())
    say = said("gt-worker", environment.DEBUG_COMPILE.value())
    plain, advertise = args.plain_collectives, args.advertise
    shell = Shell(address, engine, known, args.id, args.timeout, see, batch, say, plain, advertise, connection)
    if environment.DEBUG_PROGRAMS.value():
        shell.core.definitions.show = lambda stage, program: show(f"gt-worker: {stage}\n{program}")
    if environment.VERBOSE.value():
        shell.core.tell = lambda line: show(f"gt-worker: {line}")
        show(f"gt-worker: {shell.core.name} is worker {shell.core.index}: {engine.name} on {engine.device}")
    return shell


def serve(shell: Shell, told: Callable[[], bool], last: Callable[[], None]) -> int:
    try:
        shell.run(until=told)
        if shell.ended:
            show(f"gt-worker: {shell.ended}")
        if shell.spoilt:
            last()
            NAMES.remove()
            os._exit(3)  # at a regular exit the device's library may wait forever
    except KeyboardInterrupt:
        pass
    except SystemExit as end:
        if isinstance(end.code, str):
            show(f"gt-worker: {end.code}")
            return 1
    return 0


def bound_memory(most: int) -> None:
    """Limit the process's memory, so that an allocation without room fails as an error of its tensor. Without a limit the OS
    overcommits, and kills the process when the memory is used."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def room() -> int:
    """Bytes that this process may have: its own and the available ones, of which it needs a few for its threads: libzmq aborts
    if one cannot be started, where tensors of a worker on a full host only fail."""
    import psutil

    own = psutil.Process().memory_info()
    found = getattr(own, "data", own.rss) + max(psutil.virtual_memory().available, THREADS)
    with contextlib.suppress(OSError, ValueError):
        found = min(found, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return found


def wanted(args: argparse.Namespace) -> tuple[str | None, tuple[str, ...]]:
    """The backend and its fallbacks: from the arguments, else the environment, else the configuration."""
    named = args.fallback_backends
    fallbacks = backends.fallbacks() if named is None else tuple(n.strip() for n in named.split(",") if n.strip())
    return args.backend or backends.asked_for(), fallbacks


def keys(args: argparse.Namespace) -> Keys:
    """The users' key and the workers' key. Those of this user's server on this host are found without arguments."""
    return Keys(args.key, args.worker_key or (kept_worker_key(args.port) if args.key else "")).check()


def take_rank(args: argparse.Namespace) -> ranks.Rendezvous | None:
    """If a launcher started this worker: find the dispatcher, which the first rank hosts unless `--host` names another."""
    if not args.launcher:
        return None
    rank = ranks.rank_of(args.launcher)
    args.id = f"{args.id}-{rank.rank}" if args.id else ""
    if args.host:  # an already running dispatcher, with the environment's keys
        os.environ["LOCAL_RANK"] = str(rank.local)
        return None
    meeting = ranks.meet(rank, args.pool or "", args.backend or "", advertised(args.advertise)[0] if args.advertise else "")
    args.pool = str(meeting.path)
    return meeting


def find_pool(args: argparse.Namespace) -> None:
    """Read address and keys from a pool's file, once its dispatcher has written its address."""
    if args.pool == "-":
        pool = pool_file.parse(sys.stdin.readline(), "standard input")
    else:
        pool = pool_file.await_server(Path(args.pool), max(args.timeout, POOL_STARTS))
    args.host, _, port = pool.server.rpartition(":")
    args.port, args.key, args.worker_key = int(port), pool.key, pool.worker_key


def leave() -> None:
    """Exit at once if Python's exit would wait for a compilation, or might for NCCL."""
    compiler = sys.modules.get("gt.worker.engine.torch.inductor")
    transport = sys.modules.get("gt.worker.collectives.torch_transport")
    if compiler is not None and compiler.busy() or transport is not None and transport.USED.is_set():
        NAMES.remove()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
