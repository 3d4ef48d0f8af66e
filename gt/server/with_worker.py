"""A dispatcher and its only worker in one process, as a client starts them by itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gt.dispatcher.serve import Server
from gt.server.inner_dispatcher import InnerDispatcher
from gt.worker.__main__ import arguments, begin


def run(server: Server, name: str, backend: str | None, told: Callable[[], bool], last: Callable[[], None]) -> int:
    """Serve until `told()` is true. Returns the exit status; `last` is called before an end without cleaning up."""
    given = ["--auto", name, "--id", "auto_worker", *(["--backend", backend] if backend else [])]
    return begin(arguments(argparse.ArgumentParser()).parse_args(given), told, InnerDispatcher(server).connect, last)
