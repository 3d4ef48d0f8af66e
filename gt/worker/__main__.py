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

from gt import environment
from gt.config import Backends, read_backends
from gt.errors import ConnectionFailed
from gt.transport.addresses import NAMES
from gt.transport.auth import Keys, kept_worker_key

BACKEND = "a name that `gt backends` lists, or module:Class (GT_BACKEND, or backend: in GT_CONFIG)"
FALLBACKS = (
    "what to use, in this order, where the backend is not available, such as cpp,numpy "
    "(GT_FALLBACK_BACKENDS, or fallback_backends: in GT_CONFIG)"
)


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("--host", default="localhost", help="where the dispatcher is (localhost)")
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
    p.add_argument("--auto", metavar="NAME", help=argparse.SUPPRESS)
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
    path = environment.CONFIG.value()
    config = read_backends(path) if path else Backends()
    named = args.fallback_backends
    fallbacks = config.fallback_backends if named is None else tuple(n.strip() for n in named.split(",") if n.strip())
    return args.backend or config.backend, fallbacks


def keys(args: argparse.Namespace) -> Keys:
    """The users' key and the workers'. That of a server of this user on this host need not be said."""
    return Keys(args.key, args.worker_key or (kept_worker_key(args.port) if args.key else "")).check()


def work(args: argparse.Namespace) -> int:
    from gt.launch import end_when_told, ending, follow_parent
    from gt.transport.addresses import address_of, ipc_address
    from gt.transport.debug_output import said, show, trace

    if args.auto:
        follow_parent()
    told = end_when_told()
    keep_freed_memory()
    from gt.worker.engine import make
    from gt.worker.serve import Shell

    try:
        remarks = environment.check([environment.WORKER])
        for remark in remarks if not args.auto else ():  # the client that starts a worker by itself has said it
            print(f"gt-worker: {remark}", file=sys.stderr, flush=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # said below, as everything is that a worker says
            engine = make(*wanted(args))
        for name, reason in engine.fell_back.items():
            notice = f"backend {name!r} is not available: {reason}; falling back to {engine.name!r}"
            show(f"gt-worker: {notice}")
        if engine.device == "cpu":
            bound_memory(args.memory or room())
        Keys(args.key, args.worker_key).check()
        address = ipc_address(args.auto) if args.auto else address_of(f"{args.host}:{args.port}", args.timeout)
        known = keys(args)  # after a server that is still starting has listened: it writes its workers' key before
        batch = environment.WORKER_BATCH_SIZE.value()
        see = trace("gt-worker", environment.DEBUG_WORKER.value())
        say = said("gt-worker", environment.DEBUG_COMPILE.value())
        shell = Shell(address, engine, known, args.id, args.timeout, see, batch, say, args.plain_collectives)
        if environment.DEBUG_PROGRAMS.value():
            shell.core.show = lambda stage, program: show(f"gt-worker: {stage}\n{program}")
        if environment.VERBOSE.value():
            shell.core.tell = lambda line: show(f"gt-worker: {line}")
            where = f"{engine.name} on {engine.device}"
            show(f"gt-worker: {shell.core.name} is worker {shell.core.index}: {where}")
    except (ConnectionFailed, ValueError) as failed:
        show(f"gt-worker: {failed}")
        return 1
    try:
        shell.run(until=told)
        if shell.ended:
            show(f"gt-worker: {shell.ended}")
    except KeyboardInterrupt:
        pass
    except SystemExit as end:
        if isinstance(end.code, str):
            show(f"gt-worker: {end.code}")
            return 1
    finally:
        shell.close()
        ending()
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
