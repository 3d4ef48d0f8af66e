"""Tables of everything that is set or shown by name: options of commands, environment variables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from gt import cli
from gt.environment import VARIABLES


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def variables() -> str:
    rows = [v.row() for v in VARIABLES.values()]
    return "\n".join(
        ["# Environment variables", "", "| Variable | What it does | Default | Read by |", "|---|---|---|---|", *rows, ""]
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
        lines += [f"## {name}", "", cell(parser.description or ""), "", "| Option | What it does | Default |", "|---|---|---|"]
        lines += [option(a) for a in parser._actions if a.help != argparse.SUPPRESS]
        lines += [""]
    return "\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {"options": options, "variables": variables}
