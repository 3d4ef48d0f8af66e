"""The `gt` command. A subcommand is a module with `add_parser(subparsers)` that sets `run` to a function of the arguments."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from gt import __version__
from gt.errors import GTError

COMMANDS = [
    "gt.server.__main__",
    "gt.worker.__main__",
    "gt.watch.stats",
    "gt.watch.clients",
    "gt.server.users",
    "gt.tensor_ops.command",
    "gt.watch.trace",
    "gt.watch.visualize",
    "gt.watch.top_command",
    "gt.watch.doctor",
    "gt.pools.cli",
    "gt.pools.probe",
    "gt.pools.autoscale",
]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="gt", description="Eager tensors on a shared pool of devices.")
    p.add_argument("--version", action="version", version=f"gt {__version__}")
    commands = p.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        importlib.import_module(module).add_parser(commands)
    _describe(p)
    return p


def _describe(p: argparse.ArgumentParser) -> None:
    """Begin the help of each command with a sentence: its description, or the line by which it is listed."""
    for action in p._actions:
        if isinstance(action, argparse._SubParsersAction):
            listed = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                text = below.description or listed[name]
                below.description = f"{text[0].upper()}{text[1:].removesuffix('.')}."
                _describe(below)


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # who read it has enough, as in `gt doctor --host | head`; Python flushes once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except GTError as failed:
        print(f"gt: {failed}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
