"""`gt probe`: whether a dispatcher answers, or lists a worker. It connects as a client with the environment's key, so that
the loop that serves clients gives the answer. Exit status 0 means yes."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from gt.client.default import connect, disconnect
from gt.errors import GTError

SUMMARY = "check that a dispatcher answers or that a worker has joined, for health checks"


def add_parser(commands: Any) -> None:
    p = commands.add_parser("probe", help=SUMMARY, description=SUMMARY)
    p.add_argument("what", choices=("dispatcher", "worker"), help="process to ask about")
    p.add_argument("--host", default="localhost", help="host of the dispatcher (default: localhost)")
    p.add_argument("--port", type=int, default=9000, help="port of the dispatcher (default: 9000)")
    p.add_argument("--id", default=os.environ.get("POD_NAME", ""), help="name of the worker (default: POD_NAME)")
    p.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for an answer (default: 5)")
    p.add_argument(
        "--unless-unreachable", action="store_true", help="yes where no dispatcher answers: that is not the worker's fault"
    )
    p.set_defaults(run=probe)


def probe(args: argparse.Namespace) -> int:
    server = f"tcp://{args.host}:{args.port}"
    try:
        session = connect(server if args.host != "localhost" else f"localhost:{args.port}", timeout=args.timeout)
        names = [worker.name for worker in session.workers]
    except GTError as wrong:
        print(f"gt probe: {wrong}", file=sys.stderr)
        return 0 if args.what == "worker" and args.unless_unreachable else 1
    finally:
        disconnect()
    if args.what == "dispatcher" or args.id in names:
        return 0
    print(
        f"gt probe: the dispatcher at {server} knows no worker {args.id!r}: it has {', '.join(names) or 'none'}",
        file=sys.stderr,
    )
    return 1
