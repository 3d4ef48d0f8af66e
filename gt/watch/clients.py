"""The commands that list the clients of a server, and end one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console

from gt import environment
from gt.watch.stats import ask, client_table


def add_parser(commands: Any) -> None:
    """`gt ps HOST:PORT` and `gt kill CLIENT HOST:PORT`."""
    listed = commands.add_parser("ps", help="list the clients of a running server")
    ended = commands.add_parser("kill", help="end a client of a running server, with an administrator's key")
    ended.add_argument("client", type=int, help="its number, as `gt ps` lists it")
    for p, run in ((listed, ps), (ended, kill)):
        p.add_argument("server", nargs="?", default="localhost:9000", help="host:port (localhost:9000)")
        p.add_argument("--key", default=environment.KEY.value(), help="an administrator's key, or a user's own (GT_KEY)")
        p.set_defaults(run=run)
    listed.add_argument("--json", action="store_true", help="as a JSON list")


def ps(args: argparse.Namespace) -> int:
    [clients] = ask(args, ("clients", None))
    if args.json:
        print(json.dumps(clients))
    else:
        Console().print(client_table(clients))
    return 0


def kill(args: argparse.Namespace) -> int:
    [process] = ask(args, ("kill", args.client))
    print(f"ended client {args.client} ({process})")
    return 0
