"""The registry's rows as text: a rich table for terminals, a Markdown table for the documentation."""

from typing import Any

from rich.console import Console
from rich.table import Table

_SHORT = ("backend", "available", "library", "why not / what it runs")
_LONG = (*_SHORT, "devices", "units", "memory", "dtypes", "self-test")


def cells(row: dict[str, Any], verbose: bool) -> list[str]:
    library = f"{row['library']} {row['library_version']}" if row["library"] else "-"
    short = [row["name"], "yes" if row["available"] else "no", library, row["reason"] or row["executes"]]
    if not verbose:
        return short
    test = row["self_test"]
    error = "-" if test["max_abs_err"] is None else f"error {test['max_abs_err']:.1e}, {test['seconds']:.3f} s"
    memory = f"{row['max_memory'] / 2**30:.1f} GiB" if row["max_memory"] else "-"
    return [*short, str(row["device_count"]), str(row["compute_units"]), memory, ", ".join(row["dtypes"]) or "-", error]


def show(rows: list[dict[str, Any]], verbose: bool = False) -> None:
    table = Table(*(_LONG if verbose else _SHORT))
    for row in rows:
        table.add_row(*cells(row, verbose), style=None if row["available"] else "dim")
    Console().print(table)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| Backend | Name | Available | Library | Runs, or why not |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        name, available, library, what = cells(row, verbose=False)
        lines.append(f"| `{name}` | {row['display_name']} | {available} | {library} | {what} |")
    return "\n".join(lines)
