"""A running pool, for `gt.pool` and the commands."""

from __future__ import annotations

import contextlib
import sys
import time
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
    """A pool that lives as long as a `with` block: `gt up`, `gt.connect` and `gt down` in one. `options` are those of `gt up`,
    with `_` for `-`.

        with gt.pool("local", workers=2):
            print(gt.ones(2, 2).sum())
    """
    return RunningPool(pool_file.make(name, cluster, workers, backend, **options), cluster_of(cluster))


def open_pool(name: str = "") -> RunningPool:
    """An already running pool, by its name."""
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
        """Start the pool. With `follow`, it ends when this process does."""
        self.cluster.check(self.record)
        self.record.release = __version__
        pool_file.create(self.record)
        try:
            self.cluster.start(self.record, follow and self.cluster.follows)
        except BaseException:  # also KeyboardInterrupt: no job of the pool may be left behind
            with contextlib.suppress(OSError):
                self.cluster.stop(self.record)
            pool_file.remove(self.record)
            raise
        pool_file.save(self.record)
        if self.record.options.get("max_workers"):
            self._start_autoscaler(follow)
        return self

    def _start_autoscaler(self, follow: bool) -> None:
        """Start the autoscaler's process."""
        o = self.record.options
        command = [sys.executable, "-P", "-m", "gt", "autoscale", self.name, "--max", str(o["max_workers"])]
        for option in ("every", "up_after", "down_after"):
            command += [f"--{option.replace('_', '-')}", str(o[option])] if o.get(option) else []
        command += ["--min", str(o.get("min_workers") or 1)]
        self.record.scaler = processes.start(self.record, "autoscale", command, processes.environment_of(self.record))
        pool_file.save(self.record)

    def scale(self, workers: int) -> None:
        """Start or end workers until the pool has `workers` of them. Ending workers drain first."""
        if workers < 0:
            raise ConfigError(f"cannot scale to {workers} workers: expected 0 or more")
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

    def locate(self, timeout: float = 0.0) -> None:
        """Bring the dispatcher's address up to date, as its cluster may have restarted it; wait for one that is starting."""
        until = time.monotonic() + timeout
        while True:
            self.record = pool_file.find(self.name)
            server = self.cluster.locate(self.record)
            if server or time.monotonic() >= until:
                break
            time.sleep(0.2)
        if server != self.record.server:
            with pool_file.changing(self.name) as self.record:
                self.record.server = server

    def down(self) -> None:
        """End the pool and remove its file."""
        processes.end([self.record.scaler] if self.record.scaler else [])
        with pool_file.changing(self.name) as record:
            self.cluster.stop(record)
            pool_file.remove(record)
            self.record = record

    def connect(self) -> None:
        """Connect this process to the pool, as `gt.connect` does."""
        self.locate(600.0)
        connect(self.name, timeout=30.0)

    def __enter__(self) -> RunningPool:
        self.up(follow=True)
        try:
            self.connect()
        except BaseException:  # also KeyboardInterrupt: the pool of this block must end
            self.down()
            raise
        return self

    def __exit__(self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        disconnect()
        self.down()

    def __repr__(self) -> str:
        return repr(self.record)
