"""Workers' statistics as a table, and the command that prints it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gt import environment
from gt.lazy_import import LazyImport
from gt.watch.statistics import described

default = LazyImport("gt.client.default")  # not loaded for `gt --help` and commands that only start processes

DESCRIPTION = "Show the workers and clients of a running server, with their statistics."


def amount(n: float) -> str:
    """Bytes with a unit, such as `1.2 MB`."""
    for unit in ("B", "KB", "MB", "GB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TB"


def ops_text(ops: dict[str, int]) -> str:
    """Ops by name, the most frequent first."""
    return ", ".join(f"{name} {n}" for name, n in sorted(ops.items(), key=lambda item: (-item[1], item[0])))


def engine_text(stats: dict[str, Any]) -> str:
    """The engine; where the base engine runs part of the ops, the number of ops of each."""
    name, ways = stats["engine"], stats.get("kernels", {})
    if stats.get("base"):
        others = {"bridged": f"by {stats['base']}"}
        name += "".join(f"\n{ways[w]} {others.get(w, w)}" for w in ("own", "decomposed", "bridged") if ways.get(w))
    return name + "".join(f"\nnot {missing}: {why}" for missing, why in stats.get("fell_back", {}).items())


def failed_text(n: int) -> str:
    return f"; {n} failed" if n else ""


def report(workers: dict[str, dict[str, Any]]) -> Group:
    """A row for each worker, and below the ops of each by name."""
    table = Table(title="Workers", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("#", "worker", "engine", "device"):
        table.add_column(name, no_wrap=True)
    for name in ("ops", "tensors", "bytes", "queue", "idle"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, s in workers.items():
        row = (
            str(s["index"]), name, engine_text(s), s["device"], str(s["instructions"]), str(s["tensors"]), amount(s["bytes"]),
            str(s.get("queue", 0)), f"{s.get('idle', 1.0):.0%}",
        )  # fmt: skip
        table.add_row(*map(Text, row))  # as Text: users choose the names, which could contain markup
    did = [Text(f"{name}: {ops_text(s['ops']) or 'no ops yet'}{failed_text(s['failures'])}") for name, s in workers.items()]
    return Group(table, *did)


REPLAY = (
    "traces_found", "hits", "instructions_saved", "local_answers", "traces", "calls", "units", "unit_calls", "sharded_calls",
    "numpy_calls", "small_run_ops", "compiling", "compiled", "compiled_executions", "launches_saved",
)  # fmt: skip


def replay_table(workers: dict[str, dict[str, Any]]) -> Table:
    """The traces and programs, a column for each worker. Counts that are zero on all of them have no row."""
    made = Table(title="Replay", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.add_column("")
    for name in workers:
        made.add_column(Text(name), justify="right")
    kept = [s["replay"] for s in workers.values()]
    for name in REPLAY:
        if any(r[name] for r in kept):
            made.add_row(name.replace("_", " "), *(str(r[name]) for r in kept))
    if any(r["compile_seconds"] for r in kept):
        made.add_row("compile seconds", *(f"{r['compile_seconds']:.2f}" for r in kept))
    for why in sorted({why for r in kept for why in r["fallbacks"]}):
        made.add_row(Text(f"fallback: {why}"), *(str(r["fallbacks"].get(why, 0)) for r in kept))
    for why in sorted({why for r in kept for why in r["misses"]}):
        line = next((r["miss_lines"][why] for r in kept if why in r["miss_lines"]), "")
        shown = Text(f"miss: {why}" + (f"\n{line}" if line else ""))
        made.add_row(shown, *(str(r["misses"].get(why, 0)) for r in kept))
    return made


CLIENTS = ("#", "user", "process", "weight", "seconds", "wanted", "got", "p50", "p99", "bytes", "on host", "in flight")
USUAL = {"user": "", "weight": "1", "on host": "0 B"}  # columns that are left out where all clients have this
LESSER = ("p50", "wanted", "seconds", "on host", "weight")  # columns that are left out first where there is little room


def client_table(clients: list[dict[str, Any]], width: int) -> Table:
    """A row for each client, and as many columns as there is room for."""
    rows = []
    for c in clients:
        most = f" of {amount(c['memory'])}" if c["memory"] else ""
        rows.append((
            str(c["number"]), c["user"], c["process"], f"{c['weight']:g}", f"{c['seconds']:.2f}", f"{c['wanted']:.0%}",
            f"{c['got']:.0%}", f"{c['wait_p50'] * 1e3:.1f} ms", f"{c['wait_p99'] * 1e3:.1f} ms", amount(c["bytes"]) + most,
            amount(c["moved"]), str(c["queue"] + c["held"]),
        ))  # fmt: skip
    columns = {name: [row[i] for row in rows] for i, name in enumerate(CLIENTS)}
    columns = {name: texts for name, texts in columns.items() if any(text != USUAL.get(name) for text in texts)}
    left_out = []
    for name in LESSER:
        if sum(max(map(len, (title, *texts))) + 2 for title, texts in columns.items()) > width and columns.pop(name, []):
            left_out.append(name)
    made = Table(title="Clients", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    made.caption = f"a wider terminal shows {', '.join(left_out)}, too; --json shows all" if left_out else None
    for name in columns:
        made.add_column(name, justify="left" if name in ("user", "process") else "right", no_wrap=True)
    for cells in zip(*columns.values()):
        made.add_row(*map(Text, cells))
    return made


def add_parser(commands: Any) -> None:
    """`gt stats HOST:PORT`."""
    p = commands.add_parser("stats", help="show the workers and clients of a running server", description=DESCRIPTION)
    p.add_argument("server", nargs="?", default="localhost:9000", help="host:port of the server (default: localhost:9000)")
    p.add_argument("--key", default=environment.KEY.value(), help="key of the server (default: GT_KEY)")
    p.add_argument("--json", action="store_true", help="print the statistics as one JSON object")
    p.add_argument("--describe", action="store_true", help="print the meaning of each statistic, without a server")
    p.set_defaults(run=run)


def ask(args: argparse.Namespace, *questions: tuple[str, Any]) -> list[Any]:
    """A server's answers to questions, each a name and an argument."""
    session = default.connect(args.server, key=args.key)
    try:
        return [session.ask(about, argument) for about, argument in questions]
    finally:
        default.disconnect()


def description() -> Table:
    """A row for each statistic."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("in", "statistic", "is"):
        made.add_column(name, overflow="fold")
    for where, name, meaning in described():
        made.add_row(Text(where), name, Text(meaning))
    return made


def run(args: argparse.Namespace) -> int:
    if args.describe:
        Console().print(description())
        return 0
    stats, clients = ask(args, ("stats", None), ("clients", None))
    if args.json:
        print(json.dumps({**stats, "clients": clients}))
    else:
        console = Console()
        console.print(report(stats["workers"]), client_table(clients, console.width))
    return 0
