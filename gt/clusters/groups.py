"""Groups of workers that start and end together: the ranks of torchrun or mpirun, the tasks of a SLURM job."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from typing import Any

from gt.clusters import pool_file, processes
from gt.clusters.cluster import ENDED, RUNNING, Cluster, Member
from gt.clusters.pool_file import Pool
from gt.errors import ConfigError


class Grouped(Cluster):
    """The first group hosts the dispatcher, unless `--dispatcher-here` puts it on this host."""

    def arguments(self, p: argparse.ArgumentParser) -> None:
        p.add_argument("--per-group", type=int, help="number of workers that start and end together (default: all)")
        p.add_argument("--dispatcher-here", action="store_true", help="run the dispatcher on this host, not in the first group")
        p.add_argument("--advertise", default="", help="address at which the hosts of the workers reach the dispatcher")

    def launch(self, pool: Pool, group: str, count: int) -> dict[str, Any]:
        """Start a group of `count` workers and return its handle."""
        raise NotImplementedError

    def end(self, handles: list[dict[str, Any]]) -> None:
        """End groups; their workers drain first."""
        raise NotImplementedError

    def start(self, pool: Pool, follow: bool = False) -> None:
        pool.run = {}
        if pool.options.get("dispatcher_here"):
            processes.start_dispatcher(pool, host="0.0.0.0", follow=follow)
        self.grow(pool, pool.workers)

    def grow(self, pool: Pool, count: int) -> None:
        each = int(pool.options.get("per_group") or count)
        while count > 0:
            size = min(each, count)
            group = f"{pool.name}-{pool.started}"
            pool.started += 1
            handle = self.launch(pool, group, size)
            for rank in range(size):
                pool.members[f"{group}-{rank}"] = {"group": group, "rank": rank, **handle}
            count -= size

    def groups(self, pool: Pool) -> dict[str, list[str]]:
        """The members of each group."""
        found: dict[str, list[str]] = {}
        for name, member in pool.members.items():
            found.setdefault(member["group"], []).append(name)
        return found

    def shrink(self, pool: Pool, count: int) -> None:
        groups, gone, left = self.groups(pool), list[str](), count
        for group in list(reversed(groups))[: len(groups) - 1]:  # the first group may host the dispatcher
            if left >= len(groups[group]):
                left -= len(groups[group])
                gone.append(group)
        if left:
            sizes = ", ".join(str(len(g)) for g in groups.values())
            raise ConfigError(
                f"{self.name} ends workers by groups, and these have {sizes} workers: cannot take {count} of them away; "
                "`gt up --per-group 1` starts each by itself, and `gt down` ends all"
            )
        self.end([pool.members[groups[g][0]] for g in gone])
        for name in [n for g in gone for n in groups[g]]:
            del pool.members[name]

    def stop(self, pool: Pool) -> None:
        self.end([pool.members[names[0]] for names in self.groups(pool).values()])
        if "pid" in pool.run:
            processes.end([pool.run])
        pool.members, pool.run = {}, {}

    def command(self, pool: Pool, group: str) -> list[str]:
        """The command of each worker of a group."""
        options = processes.worker_options(pool, group)
        advertise = pool.options.get("advertise") and not pool.options.get("dispatcher_here")
        return [
            sys.executable, "-P", "-m", "gt.worker", f"--{self.name}", "--pool", str(pool_file.path_of(pool.name)), *options,
            *(["--advertise", str(pool.options["advertise"])] if advertise else []),
        ]  # fmt: skip


class Launched(Grouped):
    """Groups that a launcher command on this host starts; the launcher runs as long as its group."""

    program = ""

    def arguments(self, p: argparse.ArgumentParser) -> None:
        super().arguments(p)
        p.add_argument("--launcher-options", default="", help=f"more options for {self.program}, in one argument")

    def launcher(self, count: int) -> list[str]:
        """The launcher's command, which precedes the workers'."""
        raise NotImplementedError

    def launch(self, pool: Pool, group: str, count: int) -> dict[str, Any]:
        more = shlex.split(str(pool.options.get("launcher_options", "")))
        front = self.launcher(count)
        command = [front[0], *more, *front[1:], *self.command(pool, group)]
        return processes.start(pool, group, command, processes.environment_of(pool))

    def end(self, handles: list[dict[str, Any]]) -> None:
        processes.end(handles)

    def watch(self, pool: Pool) -> list[Member]:
        there = [Member("dispatcher", RUNNING if pool.server else ENDED, pool.server)]
        for name, handle in pool.members.items():
            state = RUNNING if processes.alive(handle) else ENDED
            there.append(Member(name, state, f"rank {handle['rank']} of pid {handle['pid']}", handle["log"]))
        return there


class Torchrun(Launched):
    name, program = "torchrun", "torchrun"
    summary = "ranks of torchrun on this host"

    def launcher(self, count: int) -> list[str]:
        run = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
        return [*run, "--nproc-per-node", str(count), "--no-python"]

    def launch(self, pool: Pool, group: str, count: int) -> dict[str, Any]:
        more = shlex.split(str(pool.options.get("launcher_options", "")))
        front = self.launcher(count)
        command = [*front[:-1], *more, front[-1], *self.command(pool, group)]
        return processes.start(pool, group, command, processes.environment_of(pool))


class MPI(Launched):
    name, program = "mpi", "mpirun"
    summary = "ranks of mpirun"

    def check(self, pool: Pool) -> None:
        super().check(pool)
        if not shutil.which("mpirun"):
            raise ConfigError("mpi: there is no `mpirun` here: install Open MPI (Debian: openmpi-bin) or load its module")

    def launcher(self, count: int) -> list[str]:
        return ["mpirun", "-n", str(count)]
