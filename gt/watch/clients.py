"""The commands that list the clients of a server, and end one."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console

from gt import environment
from gt.watch.stats import ask, client_table

KILL = "end a client of a running server: one of your user, or any with an administrator's key"


def add_parser(commands: Any) -> None:
    """`gt ps HOST:PORT` and `gt kill CLIENT HOST:PORT`."""
    listed = commands.add_parser(
        "ps", help="list the clients of a running server", description="List the clients of a running server."
    )
    ended = commands.add_parser("kill", help=KILL, description=KILL)
    ended.add_argument("client", type=int, help="number of the client, as `gt ps` lists it")
    for p, run in ((listed, ps), (ended, kill)):
        p.add_argument("server", nargs="?", default="localhost:9000", help="host:port of the server (default: localhost:9000)")
        p.add_argument(
            "--key", default=environment.KEY.value(), help="key of an administrator or of the user (default: GT_KEY)"
        )
        p.set_defaults(run=run)
    listed.add_argument("--json", action="store_true", help="print a JSON list")


def ps(args: argparse.Namespace) -> int:
    [clients] = ask(args, ("clients", None))
    if args.json:
        print(json.dumps(clients))
    else:
        console = Console()
        console.print(client_table(clients, console.width))
    return 0


def kill(args: argparse.Namespace) -> int:
    [process] = ask(args, ("kill", args.client))
    print(f"ended client {args.client} ({process})")
    return 0
