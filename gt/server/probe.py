"""`gt probe`: whether a dispatcher answers, or lists a worker. The loop that serves clients gives the answer, also where no
other client has a place. Exit status 0 means yes."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from typing import Any

import zmq

from gt import environment
from gt.errors import ConnectionFailed, GTError
from gt.transport.addresses import address_of
from gt.transport.auth import Keys, reach
from gt.transport.messages import Answer, Ask, decode, encode
from gt.transport.sockets import Ends, greet, open_socket

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
    local = args.host == "localhost"
    server = f"localhost:{args.port}" if local else f"tcp://{args.host}:{args.port}"
    try:
        joined = has_joined(server, args.id, args.timeout)
    except GTError as wrong:
        print(f"gt probe: {wrong}", file=sys.stderr)
        return 0 if args.what == "worker" and args.unless_unreachable else 1
    if args.what == "dispatcher" or joined:
        return 0
    print(f"gt probe: the dispatcher at {server} knows no worker {args.id!r}", file=sys.stderr)
    return 1


def has_joined(server: str, name: str, timeout: float) -> bool:
    """Whether the dispatcher has a worker of this name; raises ConnectionFailed if it does not answer."""
    address = address_of(server, timeout)
    socket = open_socket(zmq.DEALER, secrets.token_hex(12).encode())
    ends = Ends(socket)
    try:
        reach(socket, address, Keys(environment.KEY.value()).check())
        answer = decode(greet(socket, ends, address, encode(Ask(1, "joined", name)), timeout))
    finally:
        ends.close()
        socket.close(0)
    if not isinstance(answer, Answer) or not isinstance(answer.value, bool):
        raise ConnectionFailed(f"the dispatcher at {address} answered with a {type(answer).__name__}: expected an Answer")
    return answer.value
