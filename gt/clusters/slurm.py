"""A pool as jobs of SLURM. `gt up slurm` writes an sbatch script and submits it; the tasks are workers, the first hosts the
dispatcher, and they find one another through the pool's file, on a folder that login and compute nodes share."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
from typing import Any

from gt.clusters import pool_file, processes
from gt.clusters.cluster import ENDED, RUNNING, STARTING, Member
from gt.clusters.groups import Grouped
from gt.clusters.pool_file import Pool
from gt.errors import ConfigError, ConnectionFailed

PASSED = ("partition", "time", "gres", "account", "qos", "constraint", "nodes", "ntasks_per_node", "mem", "cpus_per_task")
WARNING = 90  # seconds between SLURM's warning signal and the time limit
GRACE = 25  # seconds of those in which workers drain
WAITS, RUNS = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED"), ("RUNNING", "COMPLETING")


class Slurm(Grouped):
    name = "slurm"
    summary = "tasks of SLURM jobs, submitted by sbatch"

    def arguments(self, p: argparse.ArgumentParser) -> None:
        super().arguments(p)
        for option in PASSED:
            p.add_argument(f"--{option.replace('_', '-')}", help=f"passed to sbatch as --{option.replace('_', '-')}")
        p.add_argument("--sbatch", default="", help="further options for sbatch, in one argument")
        p.add_argument("--setup", default="", help="shell command that each job runs first, such as `module load cuda`")
        p.add_argument(
            "--no-requeue", action="store_true", help="do not requeue a job that was ended by its time limit or its node"
        )

    def check(self, pool: Pool) -> None:
        super().check(pool)
        if pool.workers < 1:
            raise ConfigError("slurm: cannot submit a job of 0 tasks: expected --workers 1 or more")

    def manifests(self, pool: Pool) -> str:
        return self.script(pool, f"{pool.name}-0", min(int(pool.options.get("per_group") or pool.workers), pool.workers))

    def script(self, pool: Pool, group: str, count: int) -> str:
        """The sbatch script of `count` workers. They drain before the job's time limit, and the job is requeued."""
        o = pool.options
        asked = [f"--{k.replace('_', '-')}={o[k]}" for k in PASSED if o.get(k)]
        if o.get("gpus_per_worker"):
            asked.append(f"--gpus-per-task={o['gpus_per_worker']}")
        log = pool_file.log_path(pool, group)
        requeue = not o.get("no_requeue")
        head = [
            f"--job-name={group}", f"--ntasks={count}", f"--output={log}", "--open-mode=append", f"--signal=B:USR1@{WARNING}",
            "--requeue" if requeue else "--no-requeue", *asked, *shlex.split(str(o.get("sbatch", ""))),
        ]  # fmt: skip
        return "\n".join([
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in head),
            "umask 077",
            f"export GT_POOLS={shlex.quote(str(pool_file.folder()))} PYTHONPATH={shlex.quote(processes.ROOT)} GT_VERBOSE=1",
            *([str(o["setup"])] if o.get("setup") else []),
            "# Before the time limit: workers drain (SIGTERM), and the job goes back to the queue.",
            "warned() {",
            '  scancel --signal=TERM "$SLURM_JOB_ID"',
            f'  for i in $(seq {GRACE}); do kill -0 "$srun" 2>/dev/null || break; sleep 1; done',
            *(['  scontrol requeue "$SLURM_JOB_ID"'] if requeue else []),
            "}",
            "trap warned USR1",
            f"srun --ntasks={count} --kill-on-bad-exit=0 --wait=0 {shlex.join(self.command(pool, group))} &",
            "srun=$!",
            'while kill -0 "$srun" 2>/dev/null; do wait "$srun"; done',
            "",
        ])  # fmt: skip

    def launch(self, pool: Pool, group: str, count: int) -> dict[str, Any]:
        path = pool_file.folder() / f"{group}.sbatch"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o700), "w") as file:
            file.write(self.script(pool, group, count))
        listed = _command("sbatch", "--parsable", str(path))
        return {"job": listed.strip().partition(";")[0], "log": str(pool_file.log_path(pool, group))}

    def end(self, handles: list[dict[str, Any]]) -> None:
        """SLURM sends SIGTERM, and SIGKILL after its KillWait."""
        if handles:
            _command("scancel", *(h["job"] for h in handles))

    def watch(self, pool: Pool) -> list[Member]:
        jobs = sorted({m["job"] for m in pool.members.values()})
        listed = (
            _command("squeue", "--noheader", "--states=all", "--format=%i %T %N", f"--jobs={','.join(jobs)}") if jobs else ""
        )
        states = {line.split()[0]: line.split()[1:] for line in listed.splitlines() if line.strip()}
        found = [Member("dispatcher", RUNNING if pool.server else STARTING, pool.server)]
        for name, handle in pool.members.items():
            state, *nodes = states.get(handle["job"], ["GONE"])
            shown = RUNNING if state in RUNS else STARTING if state in WAITS else ENDED
            found.append(Member(name, shown, f"job {handle['job']} {state} {' '.join(nodes)}".strip(), handle["log"]))
        return found


def _command(*args: str) -> str:
    if not shutil.which(args[0]):
        raise ConfigError(f"slurm: there is no `{args[0]}` here: run this on a login node of the cluster")
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode and not (args[0] == "squeue" and "Invalid job id" in done.stderr):
        raise ConnectionFailed(f"{shlex.join(args)} failed: {done.stderr.strip()}")
    return done.stdout
