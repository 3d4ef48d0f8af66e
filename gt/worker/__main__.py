"""`python -m gt.worker --host HOST -p PORT`: a worker for one device."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from gt import environment
from gt.clusters import ranks
from gt.launch import end_when_told, end_within, follow_parent
from gt.lazy_import import LazyImport

process = LazyImport("gt.worker.process")  # loaded after the process's settings, and not for `gt --help`

SUMMARY = "run a worker, which executes instructions on one device"
BACKEND = "a name that `gt backends` lists, or module:Class (GT_BACKEND, or backend: in GT_CONFIG)"
FALLBACKS = (
    "backends to use, in this order, if the backend is not available, such as cpp,numpy "
    "(GT_FALLBACK_BACKENDS, or fallback_backends: in GT_CONFIG)"
)

AFTER_DRAIN = 8.0  # seconds after GT_DRAIN to send the last answers (`serve.LINGER`) and end


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("--host", default="", help="host of the dispatcher (default: localhost)")
    p.add_argument("-p", "--port", type=int, default=9000, help="port of the dispatcher (default: 9000)")
    p.add_argument("--backend", default=environment.BACKEND.value() or None, help=BACKEND)
    p.add_argument(
        "--fallback-backends", default=environment.FALLBACK_BACKENDS.value() or None, metavar="NAMES", help=FALLBACKS
    )
    p.add_argument("--id", default="", help="name of this worker (default: HOST-PID)")
    p.add_argument("--key", default=environment.KEY.value(), help="key of the dispatcher (default: GT_KEY)")
    p.add_argument(
        "--worker-key",
        default=environment.WORKER_KEY.value(),
        help="key of the dispatcher for workers (default: GT_WORKER_KEY)",
    )
    p.add_argument(
        "--plain-collectives", action="store_true", default=environment.PLAIN_COLLECTIVES.value(),
        help="let NCCL and Gloo carry bytes between hosts, unencrypted (GT_PLAIN_COLLECTIVES)",
    )  # fmt: skip
    p.add_argument("--memory", type=int, help="limit in bytes on host memory (default: the free memory)")
    p.add_argument("--timeout", type=float, default=10.0, help="seconds to wait for the dispatcher (default: 10)")
    p.add_argument("--pool", metavar="FILE", help="file of a pool, with its address and keys; - for standard input")
    for launcher in ranks.VARIABLES:
        p.add_argument(
            f"--{launcher}", dest="launcher", action="store_const", const=launcher,
            help=f"started by {launcher}: the first rank hosts the dispatcher, unless --pool or --host gives its address",
        )  # fmt: skip
    p.add_argument(
        "--advertise", metavar="HOST[:PORT]", default="",
        help="the address that others reach this worker at, a router's or another network card's; with a port it listens there",
    )  # fmt: skip
    p.add_argument("--auto", metavar="NAME", help=argparse.SUPPRESS)
    p.add_argument("--follow", action="store_true", help=argparse.SUPPRESS)
    p.set_defaults(run=work)
    return p


def add_parser(commands: Any) -> None:
    """`gt worker`."""
    arguments(commands.add_parser("worker", help=SUMMARY, description=SUMMARY))


def keep_freed_memory() -> None:
    """Have the C library keep freed memory instead of unmapping it: fresh pages cost more than most kernels. Only glibc
    has these options; PyTorch's builds for ARM have an allocator of their own, which reads the environment."""
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")  # milliseconds, so that memory used in every step is never unmapped
    m_mmap_max, m_trim_threshold, m_top_pad = -4, -1, -2
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 64 << 20)


def work(args: argparse.Namespace) -> int:
    if args.auto or args.follow:
        follow_parent()
    return begin(args, end_when_told())


def begin(args: argparse.Namespace, told: Callable[[], bool], *within: Any) -> int:
    """Run a worker; `within` are the further arguments of `process.run` where its dispatcher is in this process."""
    end_within(environment.DRAIN.value() + AFTER_DRAIN, "gt-worker")
    keep_freed_memory()
    return int(process.run(args, told, *within))


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="gt-worker", description=SUMMARY)
    return work(arguments(p).parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
