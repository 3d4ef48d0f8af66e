"""The interface of clusters, which start and end the processes of a pool."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gt.clusters.pool_file import Pool
from gt.errors import ConfigError

RUNNING, STARTING, ENDED = "running", "starting", "ended"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a pool, as its cluster sees it. `where` names its host, pid or job."""

    name: str
    state: str
    where: str
    log: str = ""


class Cluster:
    """Starts, observes and ends the dispatcher and the workers of a pool. Methods change `pool`, which the caller writes back
    to its file; the handles of processes are kept in `pool.members` and `pool.run`."""

    name = ""
    summary = ""
    follows = False  # whether `start` can end a pool with the calling process

    def arguments(self, p: argparse.ArgumentParser) -> None:
        """The options of `gt up NAME` that only this cluster has."""

    def check(self, pool: Pool) -> None:
        """Raise a ConfigError for invalid options."""
        if int(pool.options.get("gpus_per_worker", 0) or 0) > 1:
            raise ConfigError("--gpus-per-worker: expected 0 or 1, as a worker computes on one device; use more workers")

    def start(self, pool: Pool, follow: bool = False) -> None:
        """Start the dispatcher and `pool.workers` workers."""
        raise NotImplementedError

    def grow(self, pool: Pool, count: int) -> None:
        """Start `count` more workers."""
        raise NotImplementedError

    def shrink(self, pool: Pool, count: int) -> None:
        """Drain and end the newest `count` workers."""
        raise NotImplementedError

    def watch(self, pool: Pool) -> list[Member]:
        """The states of the dispatcher and the workers."""
        raise NotImplementedError

    def locate(self, pool: Pool) -> str:
        """The dispatcher's address, or "" while it has none. Here for dispatchers that keep the pool's file up to date."""
        return pool.server

    def stop(self, pool: Pool) -> None:
        """End all processes of a pool."""
        raise NotImplementedError

    def manifests(self, pool: Pool) -> str:
        """The commands or files that `start` would submit, for `gt up --dry-run`."""
        raise ConfigError(f"--dry-run prints the jobs of slurm and k8s; {self.name} starts processes: leave the option out")
