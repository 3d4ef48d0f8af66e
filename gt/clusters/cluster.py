"""The seam: what GT asks of whatever starts processes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from gt.clusters.pool_file import Pool
from gt.errors import ConfigError

RUNNING, STARTING, ENDED = "running", "starting", "ended"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a pool, as its cluster sees it. `where` is the host, the pid, the job: what one would look for."""

    name: str
    state: str
    where: str
    log: str = ""


class Cluster:
    """Starts the dispatcher and the workers of a pool, says how they are, and ends them. A method changes `pool`, which its
    caller writes back; anything it must find again later goes to `pool.members` or `pool.run`."""

    name = ""
    summary = ""
    follows = False  # whether `start` can tie a pool to the life of the process that calls it

    def arguments(self, p: argparse.ArgumentParser) -> None:
        """The options of `gt up NAME` that only this cluster has."""

    def check(self, pool: Pool) -> None:
        """Raise a ConfigError for options that cannot be."""
        if int(pool.options.get("gpus_per_worker", 0) or 0) > 1:
            raise ConfigError("--gpus-per-worker: a worker computes on one device, want 0 or 1 and more workers")

    def start(self, pool: Pool, follow: bool = False) -> None:
        """Start the dispatcher and `pool.workers` workers."""
        raise NotImplementedError

    def grow(self, pool: Pool, count: int) -> None:
        """Start so many more workers."""
        raise NotImplementedError

    def shrink(self, pool: Pool, count: int) -> None:
        """Have the newest workers finish, pass on what they hold, and leave."""
        raise NotImplementedError

    def watch(self, pool: Pool) -> list[Member]:
        """How the dispatcher and the workers are."""
        raise NotImplementedError

    def stop(self, pool: Pool) -> None:
        """End all of a pool."""
        raise NotImplementedError

    def manifests(self, pool: Pool) -> str:
        """What `start` would submit, for `gt up --dry-run`."""
        raise ConfigError(f"--dry-run: {self.name} submits nothing, it starts processes")
