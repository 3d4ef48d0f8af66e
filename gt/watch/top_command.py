"""The arguments of `gt top`. Its screen needs Textual, an optional dependency, which is imported when the command runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from gt.errors import GTError
from gt.watch.trace import server, server_arguments

SUMMARY = "watch a cluster in a terminal"


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    server_arguments(p)
    p.set_defaults(run=run)
    return p


def add_parser(commands: Any) -> None:
    arguments(commands.add_parser("top", help=SUMMARY, description=SUMMARY))


def run(args: argparse.Namespace) -> int:
    try:
        top = importlib.import_module("gt.watch.top")
    except ImportError as absent:
        raise GTError("gt top needs Textual: `pip install textual`") from absent
    if not sys.stdout.isatty():
        raise GTError("gt top needs a terminal; to write to a file use `gt trace` or `gt stats --json`")
    top.Top([server(args)], args.key).run()
    return 0


def main(argv: list[str] | None = None) -> int:
    return run(arguments(argparse.ArgumentParser(prog="gt top", description=SUMMARY)).parse_args(argv))
