"""`gt trace`: events of a running cluster to a file, and as JSON for Perfetto and Chrome."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from gt import environment
from gt.errors import GTError
from gt.transport.events import EVERY
from gt.transport.reporting import INTERVALS
from gt.watch import perfetto
from gt.watch.capture import CaptureFile, count, read
from gt.watch.listen import Listener, local_servers

LATE = 2 * INTERVALS[EVERY]  # most seconds from an event to its message: a worker's report, then the dispatcher's
SUMMARY = "capture the events of a running cluster, for Perfetto and Chrome"


def server_arguments(p: argparse.ArgumentParser) -> None:
    """Add the arguments that select a dispatcher."""
    p.add_argument("--host", default="", help="host of the dispatcher (default: this host)")
    p.add_argument(
        "-p",
        "--port",
        type=int,
        default=0,
        help="port of the dispatcher (default: your most recently started dispatcher on this host)",
    )
    p.add_argument("--key", default=environment.KEY.value(), help="key of the server (default: GT_KEY)")


def server(args: argparse.Namespace) -> str:
    """The address of the selected dispatcher."""
    if args.host or args.port:
        return f"{args.host or 'localhost'}:{args.port or 9000}"
    found = local_servers()
    if not found:
        raise GTError("no dispatcher of yours runs on this host: start one, or name another with --host and --port")
    return found[0]


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("-s", "--seconds", type=float, default=5.0, help="seconds to capture (default: 5)")
    p.add_argument("-n", "--events", type=int, default=0, help="number of events after which to stop (default: no limit)")
    p.add_argument("--dir", default=".", help="folder for the files (default: the working directory)")
    server_arguments(p)
    p.set_defaults(run=run)
    return p


def add_parser(commands: Any) -> None:
    arguments(commands.add_parser("trace", help=SUMMARY, description=SUMMARY))


def capture(address: str, path: Path, seconds: float, events: int = 0, key: str = "") -> int:
    """Write the events of so many seconds, or so many events, to a file, and return their number."""
    seen = 0
    with Listener(address, EVERY, key) as listener, CaptureFile(path) as file:
        for watched in listener.take(seconds + LATE):
            file.write(watched)
            seen += count(watched)
            if events and seen >= events:
                break
    return seen


def run(args: argparse.Namespace) -> int:
    folder = Path(args.dir)
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / time.strftime("gt-%Y%m%d-%H%M%S")
    path, shown = stem.with_suffix(".capture"), stem.with_suffix(".json")
    seen = capture(server(args), path, args.seconds, args.events, args.key)
    recording = read(path)
    perfetto.write(recording, shown)
    lost = f"; {recording.dropped} messages were dropped because they came too fast" if recording.dropped else ""
    print(f"{seen} events in {path}{lost}")
    print(f"{shown}: open it at https://ui.perfetto.dev or chrome://tracing")
    return 0


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="gt trace", description=SUMMARY)
    return run(arguments(p).parse_args(argv))
