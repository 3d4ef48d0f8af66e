"""A pool of this user's processes on this host."""

from __future__ import annotations

import os
import sys
from typing import Any

from gt.clusters import pool_file, processes
from gt.clusters.cluster import ENDED, RUNNING, Cluster, Member
from gt.clusters.pool_file import Pool


class Local(Cluster):
    name = "local"
    summary = "processes of this host"
    follows = True

    def start(self, pool: Pool, follow: bool = False) -> None:
        pool.run = {}
        processes.start_dispatcher(pool, host="127.0.0.1", follow=follow)
        self.grow(pool, pool.workers, follow)

    def grow(self, pool: Pool, count: int, follow: bool = False) -> None:
        for _ in range(count):
            member, rank = processes.next_member(pool)
            command = [sys.executable, "-P", "-m", "gt.worker", "--pool", str(pool_file.path_of(pool.name))]
            command += [*processes.worker_options(pool, member), *(["--follow"] if follow else [])]
            env = processes.environment_of(pool, LOCAL_RANK=str(rank), **self._devices(pool))
            pool.members[member] = {**processes.start(pool, member, command, env, follow), "rank": rank}

    def _devices(self, pool: Pool) -> dict[str, str]:
        env = {}
        if pool.options.get("gpus_per_worker") == 0:
            env["CUDA_VISIBLE_DEVICES"] = ""
        if pool.workers > 1 and "OMP_NUM_THREADS" not in os.environ:
            env["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // pool.workers))
        return env

    def shrink(self, pool: Pool, count: int) -> None:
        gone = [pool.members.pop(name) for name in list(pool.members)[len(pool.members) - count :]]
        processes.end(gone)

    def watch(self, pool: Pool) -> list[Member]:
        return [_member("dispatcher", pool.run), *(_member(name, handle) for name, handle in pool.members.items())]

    def stop(self, pool: Pool) -> None:
        """End the dispatcher first: workers without a dispatcher cannot drain, and end at once."""
        processes.end([pool.run] if pool.run else [])
        processes.end(list(pool.members.values()))
        pool.members, pool.run = {}, {}


def _member(name: str, handle: dict[str, Any]) -> Member:
    there = bool(handle) and processes.alive(handle)
    return Member(name, RUNNING if there else ENDED, f"pid {handle.get('pid', '?')}", handle.get("log", ""))
