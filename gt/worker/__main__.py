"""`python -m gt.worker --host HOST -p PORT`: a worker for one device."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from gt import backends, environment
from gt.clusters import pool_file, ranks
from gt.errors import GTError
from gt.launch import drain_when_told, end_when_told, ending, follow_parent
from gt.transport.addresses import NAMES
from gt.transport.auth import Keys, kept_worker_key

BACKEND = "a name that `gt backends` lists, or module:Class (GT_BACKEND, or backend: in GT_CONFIG)"
FALLBACKS = (
    "what to use, in this order, where the backend is not available, such as cpp,numpy "
    "(GT_FALLBACK_BACKENDS, or fallback_backends: in GT_CONFIG)"
)
POOL_STARTS = 600.0  # seconds that a pool's dispatcher may take to start: it may wait in a queue, too


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("--host", default="", help="where the dispatcher is (localhost)")
    p.add_argument("-p", "--port", type=int, default=9000, help="its port (9000)")
    p.add_argument("--backend", default=environment.BACKEND.value() or None, help=BACKEND)
    p.add_argument(
        "--fallback-backends", default=environment.FALLBACK_BACKENDS.value() or None, metavar="NAMES", help=FALLBACKS
    )
    p.add_argument("--id", default="", help="this worker's name (host-pid)")
    p.add_argument("--key", default=environment.KEY.value(), help="the dispatcher's key (GT_KEY)")
    p.add_argument("--worker-key", default=environment.WORKER_KEY.value(), help="its key for workers (GT_WORKER_KEY)")
    p.add_argument(
        "--plain-collectives", action="store_true", default=environment.PLAIN_COLLECTIVES.value(),
        help="let NCCL and Gloo carry bytes between hosts, unencrypted (GT_PLAIN_COLLECTIVES)",
    )  # fmt: skip
    p.add_argument("--memory", type=int, help="most bytes of the host's memory to use (what is free)")
    p.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for the dispatcher (10)")
    p.add_argument("--pool", metavar="FILE", help="the file of a pool, which has its address and keys; - for standard input")
    for launcher in ranks.VARIABLES:
        p.add_argument(
            f"--{launcher}", dest="launcher", action="store_const", const=launcher,
            help=f"started by {launcher}: the first rank hosts the dispatcher, unless --pool or --host says where it is",
        )  # fmt: skip
    p.add_argument("--advertise", metavar="HOST", default="", help="the address that others reach this host at")
    p.add_argument("--auto", metavar="NAME", help=argparse.SUPPRESS)
    p.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    p.set_defaults(run=work)
    return p


def add_parser(commands: Any) -> None:
    """`gt worker`."""
    arguments(commands.add_parser("worker", help="run a worker for one device"))


def keep_freed_memory() -> None:
    """Have the C library keep freed memory instead of unmapping it: fresh pages cost more than most kernels. Only glibc
    knows these options; PyTorch's builds for ARM have an allocator of their own, which looks at the environment."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")  # milliseconds: what is used in every step is never given back
    m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 64 << 20)


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
    meeting = ranks.meet(rank, args.pool or "", args.backend or "", args.advertise)
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


def work(args: argparse.Namespace) -> int:
    from gt.transport.addresses import address_of, ipc_address
    from gt.transport.debug_output import said, show, trace

    if args.auto or args.follow:
        follow_parent()
    told = end_when_told()
    keep_freed_memory()
    from gt.worker.engine.choose import make
    from gt.worker.serve import Shell

    meeting = None
    try:
        meeting = take_rank(args)
        remarks = environment.check([environment.WORKER])
        for remark in remarks if not args.auto else ():  # the client that starts a worker by itself has said it
            show(f"gt-worker: {remark}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # said below, as everything is that a worker says
            engine = make(*wanted(args))
        for name, reason in engine.fell_back.items():
            notice = f"backend {name!r} is not available: {reason}; falling back to {engine.name!r}"
            show(f"gt-worker: {notice}")
        if engine.device == "cpu":
            bound_memory(args.memory or room())
        if args.pool:
            find_pool(args)
        Keys(args.key, args.worker_key).check()
        where = f"{args.host or 'localhost'}:{args.port}"
        address = ipc_address(args.auto) if args.auto else address_of(where, args.timeout)
        known = keys(args)  # after a server that is still starting has listened: it writes its workers' key before
        batch = environment.WORKER_BATCH_SIZE.value()
        see = trace("gt-worker", environment.DEBUG_WORKER.value())
        say = said("gt-worker", environment.DEBUG_COMPILE.value())
        shell = Shell(address, engine, known, args.id, args.timeout, see, batch, say, args.plain_collectives)
        if environment.DEBUG_PROGRAMS.value():
            shell.core.show = lambda stage, program: show(f"gt-worker: {stage}\n{program}")
        if environment.VERBOSE.value():
            shell.core.tell = lambda line: show(f"gt-worker: {line}")
            show(f"gt-worker: {shell.core.name} is worker {shell.core.index}: {engine.name} on {engine.device}")
    except (GTError, ValueError) as failed:
        show(f"gt-worker: {failed}")
        if meeting is not None:
            meeting.close()
        return 1
    if not args.auto and environment.DRAIN.value():
        drain_when_told(shell.drain)
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
    finally:
        shell.close()
        ending()
        if meeting is not None:
            meeting.close()
        leave()
    return 0


def leave() -> None:
    """End at once, where the end of Python would wait for a compilation that nobody needs any more."""
    compiler = sys.modules.get("gt.worker.engine.torch.inductor")
    if compiler is not None and compiler.busy():
        NAMES.remove()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="gt-worker", description="A worker: executes instructions on one device.")
    return work(arguments(p).parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
