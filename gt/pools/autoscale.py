"""`gt autoscale`: starts workers while queues are long and ends idle ones. It reads statistics from the dispatcher as a client
does, and works with any cluster."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

from gt.client.default import connect, disconnect
from gt.errors import ConfigError, GTError, SessionLost
from gt.pools.pool import open_pool

SUMMARY = "change the number of workers of a pool with the length of their queues, until the pool ends"
LONG = 1000  # average instructions in a worker's queue from which queues count as long
BUSY, IDLE = 0.9, 0.05  # shares of its time that a worker computes: from BUSY on it is busy, up to IDLE it is idle


class Autoscaler:
    """Decides the number of workers from their statistics. It reads no clock: `now` is an argument."""

    def __init__(self, minimum: int, maximum: int, up_after: float = 15.0, down_after: float = 120.0) -> None:
        if not 1 <= minimum <= maximum:
            raise ConfigError(f"cannot scale from {minimum} to {maximum} workers: expected 1 or more, and the least first")
        self.minimum, self.maximum, self.up_after, self.down_after = minimum, maximum, up_after, down_after
        self.last: dict[str, float] = {}  # busy seconds of each worker at the last look
        self.looked: float | None = None
        self.busy_since: float | None = None
        self.idle_since: float | None = None

    def look(self, now: float, asked: int, stats: Mapping[str, Mapping[str, Any]]) -> int:
        """The wanted number of workers; `asked` is the requested number, `stats` are the statistics of the workers that
        have joined."""
        passed = now - self.looked if self.looked is not None else 0.0
        seconds = {name: float(s.get("busy_seconds", 0.0)) for name, s in stats.items()}
        shares = [(t - self.last[name]) / passed for name, t in seconds.items() if name in self.last and passed > 0]
        self.last, self.looked = seconds, now
        if not shares or len(stats) < asked:  # the first look, or some workers have not joined yet
            self.busy_since = self.idle_since = None
            return asked
        queue = sum(int(s.get("queue", 0)) for s in stats.values()) / len(stats)
        share = sum(shares) / len(shares)
        self.busy_since = _since(self.busy_since, now, share > BUSY or queue > LONG)
        self.idle_since = _since(self.idle_since, now, share < IDLE and queue == 0)
        if self.busy_since is not None and now - self.busy_since >= self.up_after and asked < self.maximum:
            self.busy_since = None
            return min(self.maximum, asked + max(1, asked // 2))
        if self.idle_since is not None and now - self.idle_since >= self.down_after and asked > self.minimum:
            self.idle_since = now
            return asked - 1
        return asked


def _since(since: float | None, now: float, holds: bool) -> float | None:
    return (now if since is None else since) if holds else None


def add_parser(commands: Any) -> None:
    p = commands.add_parser("autoscale", help=SUMMARY, description=SUMMARY)
    p.add_argument("pool", nargs="?", default="", help="name of the pool (default: GT_POOL, or the only pool)")
    p.add_argument("--min", type=int, default=1, help="smallest number of workers (default: 1)")
    p.add_argument("--max", type=int, required=True, help="largest number of workers")
    p.add_argument("--every", type=float, default=5.0, help="seconds between two looks at the queues (default: 5)")
    p.add_argument(
        "--up-after", type=float, default=15.0, help="seconds of long queues after which a worker is started (default: 15)"
    )
    p.add_argument("--down-after", type=float, default=120.0, help="seconds after which an idle worker is ended (default: 120)")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Scale the pool until its dispatcher ends and none is there in its place."""
    scaler = Autoscaler(args.min, args.max, args.up_after, args.down_after)
    try:
        while True:
            try:
                _scale(scaler, args)
            except SessionLost as lost:
                print(f"gt-autoscale: {lost}", flush=True)
    except GTError as ended:
        print(f"gt-autoscale: {ended}", flush=True)
        return 0
    finally:
        disconnect()


def _scale(scaler: Autoscaler, args: argparse.Namespace) -> None:
    """Scale the pool as long as this dispatcher lives."""
    pool = open_pool(args.pool)
    pool.locate(60.0)
    session = connect(pool.name, timeout=60.0)
    while True:
        time.sleep(args.every)
        pool = open_pool(pool.name)
        asked = len(pool.record.members)
        wanted = scaler.look(time.monotonic(), asked, session.ask("stats", timeout=60.0)["workers"])
        if wanted != asked:
            print(f"gt-autoscale: {asked} workers become {wanted}", flush=True)
            pool.scale(wanted)
