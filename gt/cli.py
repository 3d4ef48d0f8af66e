"""The `gt` command. A subcommand is a module with `add_parser(subparsers)` that sets `run` to a function of the arguments."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from gt import __version__
from gt.errors import GTError

COMMANDS = {  # the module of each command, in the order of `gt --help`; only the module of the command that runs is loaded
    "server": "gt.server.__main__",
    "worker": "gt.worker.__main__",
    "stats": "gt.watch.stats",
    "ps": "gt.watch.clients",
    "kill": "gt.watch.clients",
    "keys": "gt.server.users",
    "backends": "gt.tensor_ops.command",
    "trace": "gt.watch.trace",
    "visualize": "gt.watch.visualize",
    "top": "gt.watch.top_command",
    "doctor": "gt.watch.doctor",
    "up": "gt.pools.cli",
    "status": "gt.pools.cli",
    "down": "gt.pools.cli",
    "scale": "gt.pools.cli",
    "probe": "gt.server.probe",
    "autoscale": "gt.pools.autoscale",
}


def parser(command: str = "") -> argparse.ArgumentParser:
    """The parser of one command, or of all if there is none of this name."""
    p = argparse.ArgumentParser(prog="gt", description="Eager tensors on a shared pool of devices.")
    p.add_argument("--version", action="version", version=f"gt {__version__}")
    commands = p.add_subparsers(required=True, metavar="COMMAND")
    for module in dict.fromkeys([COMMANDS[command]] if command in COMMANDS else COMMANDS.values()):
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
    words = sys.argv[1:] if argv is None else argv
    args = parser(words[0] if words else "").parse_args(words)
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
