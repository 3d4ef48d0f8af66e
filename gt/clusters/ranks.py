"""Workers that a launcher starts by the number: which of them this process is, and how they find one dispatcher. The first
hosts it and writes its address to the pool's file, on a folder that all of them see; the others wait for that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gt.clusters import pool_file
from gt.errors import ConfigError
from gt.launch import Children

# By launcher: the variables that say rank, size, rank on its host and the job's name. The first that is set counts.
VARIABLES = {
    "torchrun": (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("TORCHELASTIC_RUN_ID",)),
    "mpi": (
        ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
        ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("PMIX_NAMESPACE", "PMI_JOBID", "OMPI_MCA_ess_base_jobid"),
    ),
    "slurm": (("SLURM_PROCID",), ("SLURM_NTASKS", "SLURM_NPROCS"), ("SLURM_LOCALID",), ("SLURM_JOB_ID",)),
}
STARTS = 600.0  # seconds that the first rank has to start a dispatcher


@dataclass(frozen=True)
class Rank:
    """One of the processes of a launcher. `attempt` tells a job that was started again from its earlier self."""

    launcher: str
    rank: int
    size: int
    local: int
    job: str
    attempt: str = ""

    @property
    def run(self) -> dict[str, str]:
        return {"launcher": self.launcher, "job": self.job, "attempt": self.attempt}


def rank_of(launcher: str, env: Mapping[str, str] = os.environ) -> Rank:
    """Which rank this process is, as its launcher says."""
    found = [next((env[name] for name in names if env.get(name)), "") for names in VARIABLES[launcher]]
    if not found[0] or not found[1]:
        names = " or ".join(VARIABLES[launcher][0])
        raise ConfigError(f"--{launcher}: {names} is not set: was this worker started by {launcher}?")
    rank, size, local, job = int(found[0]), int(found[1]), int(found[2] or 0), found[3] or str(os.getppid())
    step = env.get("SLURM_STEP_ID", "") if launcher == "slurm" else ""
    again = env.get("SLURM_RESTART_COUNT", "") or env.get("TORCHELASTIC_RESTART_COUNT", "")
    return Rank(launcher, rank, size, local, job, f"{step}.{again or 0}")


def pool_name(rank: Rank) -> str:
    """The name of the pool of a job that was started by hand."""
    job = "".join(c if c.isalnum() else "-" for c in rank.job.lower()).strip("-")[-40:].strip("-")
    return f"{rank.launcher}-{job or 'job'}"


@dataclass
class Meeting:
    """How this rank takes part: the pool's file, and what it started for that."""

    path: Path
    children: Children = field(default_factory=Children)
    made: bool = False  # this rank made the pool's file, and removes it

    def close(self) -> None:
        self.children.close()
        if self.made:
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".lock").unlink(missing_ok=True)


def meet(rank: Rank, given: str = "", backend: str = "", advertise: str = "") -> Meeting:
    """Take part in the pool of a file that is given, or in one of the job's own. Of a pool without a dispatcher, and of one
    whose dispatcher was an earlier attempt of this job, the first rank starts it."""
    os.environ["LOCAL_RANK"] = str(rank.local)
    path = Path(given) if given else pool_file.path_of(pool_name(rank))
    meeting = Meeting(path)
    if rank.rank == 0:
        if not path.exists():
            pool = pool_file.make(pool_name(rank), rank.launcher, rank.size, backend)
            pool.run = rank.run
            pool_file.create(pool)
            meeting.made = True
        if _hosts(rank, path):
            _start_dispatcher(meeting, rank, advertise)
    else:
        _await(rank, path)
    return meeting


def _hosts(rank: Rank, path: Path) -> bool:
    """Whether this job is the one whose first rank has the dispatcher."""
    with pool_file.changing(str(path.absolute())) as pool:
        mine = not pool.server or (pool.run.get("launcher"), pool.run.get("job")) == (rank.launcher, rank.job)
        if mine:
            pool.server, pool.run = "", rank.run
        return mine


def _start_dispatcher(meeting: Meeting, rank: Rank, advertise: str) -> None:
    args = ["--pool", str(meeting.path), "--host", "0.0.0.0", "-p", "0", "--follow", "--expect", str(rank.size)]
    process = meeting.children.start("gt.server", *args, *(["--advertise", advertise] if advertise else []))
    pool_file.await_server(meeting.path, STARTS, lambda: "" if process.poll() is None else "its dispatcher ended")


def _await(rank: Rank, path: Path) -> None:
    """Wait until the first rank has a dispatcher, not for the address that an earlier attempt left there."""

    def stale(pool: pool_file.Pool) -> bool:
        same = (pool.run.get("launcher"), pool.run.get("job")) == (rank.launcher, rank.job)
        return same and pool.run.get("attempt") != rank.attempt

    pool_file.await_server(path, STARTS, stale=stale)
