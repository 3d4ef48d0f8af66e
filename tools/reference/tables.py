"""Tables of everything that is set or shown by name: options of commands, environment variables, statistics."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator

from gt import cli
from gt.environment import VARIABLES
from gt.watch import metrics
from gt.watch.model import Model
from gt.watch.statistics import STATISTICS


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def variables() -> str:
    rows = [v.row() for v in VARIABLES.values()]
    return "\n".join(
        ["# Environment variables", "", "| Variable | Effect | Default | Read by |", "|---|---|---|---|", *rows, ""]
    )


def commands(parser: argparse.ArgumentParser, name: str = "gt") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command under its full name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, below in action.choices.items():
                yield from commands(below, f"{name} {command}")
            return
    yield name, parser


def option(action: argparse.Action) -> str:
    names = ", ".join(f"`{n}`" for n in action.option_strings) or f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
    default = "" if action.default in (None, False, argparse.SUPPRESS, []) else f"{action.default}"
    return f"| {names}{value} | {cell(action.help or '')} | {cell(default)} |"


def options() -> str:
    lines = ["# Command-line options", ""]
    for name, parser in commands(cli.parser()):
        lines += [f"## {name}", "", cell(parser.description or ""), "", "| Option | Effect | Default |", "|---|---|---|"]
        lines += [option(a) for a in parser._actions if a.help != argparse.SUPPRESS]
        lines += [""]
    return "\n".join(lines)


def statistics() -> str:
    """Statistics of functions and commands, and the metrics of a dashboard's /metrics with their own descriptions."""
    lines = ["# Statistics", "", "All statistics by the call that gives them; `gt stats --describe` prints the same.", ""]
    for where, names in STATISTICS.items():
        lines += [f"## {where}", "", "| Statistic | Meaning |", "|---|---|"]
        lines += [f"| `{name}` | {cell(meaning)} |" for name, meaning in names.items()]
        lines += [""]
    lines += ["## /metrics of the dashboard", "", "| Metric | Type | Meaning |", "|---|---|---|"]
    text = metrics.text(Model())
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    lines += [
        f"| `{name}` | {types[name]} | {cell(meaning)} |" for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", text, re.M)
    ]
    return "\n".join([*lines, ""])


TABLES: dict[str, Callable[[], str]] = {"options": options, "variables": variables, "statistics": statistics}
