"""`python benchmarks/compare.py [CASE ...]`: all cases as one table."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.live import Live
from rich.table import Table
from run import results


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="All cases as one table.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which cases (all); `run.py --list` names them")
    names = parser.parse_args(argv).cases
    table = Table(title="GT and its rivals (a ratio over 1: GT is faster)")
    table.add_column("case")
    for name in ("gt", "rival", "unit", "ratio"):
        table.add_column(name, justify="left" if name == "unit" else "right")
    with Live(table, console=Console(), auto_refresh=False) as live:
        for r in results(names):
            table.add_row(r["case"], f"{r['gt']:.6g}", f"{r['rival']:.6g}", r["unit"], f"{r['ratio']:.2f}")
            live.refresh()
    return 0


if __name__ == "__main__":
    sys.exit(main())
