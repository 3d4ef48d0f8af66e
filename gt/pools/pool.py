"""A pool in hand: what `gt.pool` gives, and what the commands work on."""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType
from typing import Any

from gt import __version__
from gt.client.default import connect, disconnect
from gt.clusters import cluster as cluster_of
from gt.clusters import pool_file, processes
from gt.clusters.cluster import Cluster, Member
from gt.clusters.pool_file import Pool
from gt.errors import ConfigError


def pool(cluster: str = "local", workers: int = 1, *, name: str = "", backend: str = "", **options: Any) -> RunningPool:
    """A pool for as long as a block of code takes: `gt up`, `gt.connect` and `gt down` in one. `options` are those of `gt up`,
    with `_` for `-`.

        with gt.pool("local", workers=2):
            print(gt.ones(2, 2).sum())
    """
    return RunningPool(pool_file.make(name, cluster, workers, backend, **options), cluster_of(cluster))


def open_pool(name: str = "") -> RunningPool:
    """A pool that runs already, by its name."""
    found = pool_file.find(name)
    return RunningPool(found, cluster_of(found.cluster))


class RunningPool:
    """A pool and the cluster that runs it."""

    def __init__(self, record: Pool, cluster: Cluster) -> None:
        self.record, self.cluster = record, cluster

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def server(self) -> str:
        """`host:port` of its dispatcher."""
        return self.record.server

    def up(self, follow: bool = False) -> RunningPool:
        """Start it. With `follow`, it ends when this process does."""
        self.cluster.check(self.record)
        self.record.release = __version__
        pool_file.create(self.record)
        try:
            self.cluster.start(self.record, follow and self.cluster.follows)
        except BaseException:  # whatever ended it, Ctrl-C too, no job of the pool is left behind
            with contextlib.suppress(OSError):
                self.cluster.stop(self.record)
            pool_file.remove(self.record)
            raise
        pool_file.save(self.record)
        if self.record.options.get("max_workers"):
            self._scale_by_itself(follow)
        return self

    def _scale_by_itself(self, follow: bool) -> None:
        """Start the process that adds workers while queues are long and gives them back when idle."""
        o = self.record.options
        command = [sys.executable, "-P", "-m", "gt", "autoscale", self.name, "--max", str(o["max_workers"])]
        for option in ("every", "up_after", "down_after"):
            command += [f"--{option.replace('_', '-')}", str(o[option])] if o.get(option) else []
        command += ["--min", str(o.get("min_workers") or 1)]
        self.record.scaler = processes.start(self.record, "autoscale", command, processes.environment_of(self.record))
        pool_file.save(self.record)

    def scale(self, workers: int) -> None:
        """Start or end workers until there are so many. Those that end finish first and pass on their tensors."""
        if workers < 0:
            raise ConfigError(f"cannot scale to {workers} workers: want 0 or more")
        with pool_file.changing(self.name) as record:
            there = len(record.members)
            record.workers = workers
            if workers > there:
                self.cluster.grow(record, workers - there)
            elif workers < there:
                self.cluster.shrink(record, there - workers)
            self.record = record

    def members(self) -> list[Member]:
        return self.cluster.watch(self.record)

    def down(self) -> None:
        """End it, and forget it."""
        processes.end([self.record.scaler] if self.record.scaler else [])
        with pool_file.changing(self.name) as record:
            self.cluster.stop(record)
            pool_file.remove(record)
            self.record = record

    def connect(self) -> None:
        """Use it from here on, as `gt.connect` does."""
        self.record = pool_file.await_server(pool_file.path_of(self.name), 600.0)
        connect(self.name, timeout=30.0)

    def __enter__(self) -> RunningPool:
        self.up(follow=True)
        try:
            self.connect()
        except BaseException:  # whatever ended it, Ctrl-C too, the pool that was started for this block ends
            self.down()
            raise
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        disconnect()
        self.down()

    def __repr__(self) -> str:
        return repr(self.record)
