"""What workers say of themselves, as a table, and the command that shows it."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text


def amount(n: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "KB", "MB", "GB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TB"


def ops_text(ops: dict[str, int]) -> str:
    """Ops by name, the most frequent first."""
    return ", ".join(f"{name} {n}" for name, n in sorted(ops.items(), key=lambda item: (-item[1], item[0])))


def report(workers: dict[str, dict[str, Any]]) -> Group:
    """A row a worker, and below what each did by name."""
    table = Table(title="Workers", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("#", "worker", "engine", "device"):
        table.add_column(name, no_wrap=True)
    for name in ("ops", "tensors", "bytes", "queue", "idle", "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, s in workers.items():
        table.add_row(
            str(s["index"]), name, s["engine"], s["device"], str(s["instructions"]), str(s["tensors"]), amount(s["bytes"]),
            str(s.get("queue", 0)), f"{s.get('idle', 1.0):.0%}", str(s["failures"]),
        )  # fmt: skip
    did = [Text(f"{name}: {ops_text(s['ops']) or 'no ops yet'}") for name, s in workers.items()]
    return Group(table, *did)


def add_parser(commands: Any) -> None:
    """`gt stats HOST:PORT`."""
    p = commands.add_parser("stats", help="show the workers of a running server")
    p.add_argument("server", nargs="?", default="localhost:9000", help="host:port (localhost:9000)")
    p.add_argument("--key", default=os.environ.get("GT_KEY", ""), help="the server's key")
    p.add_argument("--json", action="store_true", help="as one JSON object")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from gt.client.default import connect, disconnect

    session = connect(args.server, key=args.key)
    try:
        stats = session.ask("stats")
    finally:
        disconnect()
    if args.json:
        print(json.dumps(stats))
    else:
        Console().print(report(stats["workers"]))
    return 0
