"""Keeps the working directory out of the path of servers and workers, when it is itself imported. It uses nothing but `sys`, as
any other module could come from that directory."""

import sys

PROGRAMS = ("gt.server", "gt.worker")


def leave_working_directory() -> None:
    """`python -m gt.server` puts the working directory in front of all other places to import from, where a file named
    `msgspec.py`, put there by anybody, would run in the server. GT finds its own parts without it. Scripts keep theirs."""
    command = sys.orig_argv
    run_as_module = sys.argv[:1] == ["-m"] and "-m" in command and not sys.flags.safe_path
    if run_as_module and command[command.index("-m") + 1 :][:1] and command[command.index("-m") + 1] in PROGRAMS:
        del sys.path[0]


leave_working_directory()
