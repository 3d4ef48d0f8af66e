"""The registry's rows as text: a rich table for terminals, a Markdown table for the documentation."""

from typing import Any


def cells(row: dict[str, Any]) -> list[str]:
    library = f"{row['library']} {row['library_version']}" if row["library"] else "-"
    return [row["name"], "yes" if row["available"] else "no", library, row["reason"] or row["executes"]]


def details(row: dict[str, Any]) -> str:
    if not row["library"]:
        return ""
    test = row["self_test"]
    capability = f", compute capability {row['compute_capability'] / 10}" if row["compute_capability"] else ""
    memory = f"{row['compute_units']} units, {row['max_memory'] / 2**30:.1f} GiB"
    return (
        f"\n{row['device_count']} device(s), {memory}{capability}\n{', '.join(row['dtypes'])}"
        f"\nself-test: off by {test['max_abs_err']:.1e} in {test['seconds']:.3f} s"
    )


def show(rows: list[dict[str, Any]], verbose: bool = False) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("backend", "available", "library", "ops, or the reason", show_lines=verbose)
    for row in rows:
        *head, what = cells(row)
        table.add_row(*head, what + details(row) if verbose else what, style=None if row["available"] else "dim")
    Console().print(table)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = ["| Backend | Name | Available | Library | Runs, or why not |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        name, available, library, what = cells(row)
        lines.append(f"| `{name}` | {row['display_name']} | {available} | {library} | {what} |")
    return "\n".join(lines)
