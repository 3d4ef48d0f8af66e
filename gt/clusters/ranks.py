"""Workers as ranks of a launcher: the rank of this process, and the rendezvous of all ranks. The first rank hosts the
dispatcher and writes its address to the pool's file, in a shared folder; the other ranks wait for the address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gt.clusters import pool_file
from gt.errors import ConfigError
from gt.launch import Children

# By launcher: the variables with the rank, the size, the rank on its host and the job's name. The first one set is used.
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
START_TIMEOUT = 600.0  # seconds for the first rank to start a dispatcher


@dataclass(frozen=True)
class Rank:
    """One of the processes of a launcher. `attempt` distinguishes the runs of a requeued job."""

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
    """The rank of this process, from its launcher's variables."""
    found = [next((env[name] for name in names if env.get(name)), "") for names in VARIABLES[launcher]]
    if not found[0] or not found[1]:
        names = " or ".join(VARIABLES[launcher][0])
        raise ConfigError(f"--{launcher}: {names} is not set: was this worker started by {launcher}?")
    rank, size, local, job = int(found[0]), int(found[1]), int(found[2] or 0), found[3] or str(os.getppid())
    step = env.get("SLURM_STEP_ID", "") if launcher == "slurm" else ""
    again = env.get("SLURM_RESTART_COUNT", "") or env.get("TORCHELASTIC_RESTART_COUNT", "")
    return Rank(launcher, rank, size, local, job, f"{step}.{again or 0}")


def pool_name(rank: Rank) -> str:
    """The pool name of a job that was started without `gt up`."""
    job = "".join(c if c.isalnum() else "-" for c in rank.job.lower()).strip("-")[-40:].strip("-")
    return f"{rank.launcher}-{job or 'job'}"


@dataclass
class Rendezvous:
    """This rank's part in the rendezvous: the pool's file, and the dispatcher's process if this rank hosts it."""

    path: Path
    children: Children = field(default_factory=Children)
    made: bool = False  # this rank created the pool's file, and removes it

    def close(self) -> None:
        self.children.close()
        if self.made:
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".lock").unlink(missing_ok=True)


def meet(rank: Rank, given: str = "", backend: str = "", advertise: str = "") -> Rendezvous:
    """Join the pool of a given file, or one of the job's own. The first rank starts the dispatcher if the pool has none, or if
    its dispatcher belonged to an earlier attempt of this job."""
    os.environ["LOCAL_RANK"] = str(rank.local)
    path = Path(given) if given else pool_file.path_of(pool_name(rank))
    rendezvous = Rendezvous(path)
    if rank.rank == 0:
        if not path.exists():
            pool = pool_file.make(pool_name(rank), rank.launcher, rank.size, backend)
            pool.run = rank.run
            pool_file.create(pool)
            rendezvous.made = True
        if _hosts(rank, path):
            _start_dispatcher(rendezvous, rank, advertise)
    else:
        _await(rank, path)
    return rendezvous


def _hosts(rank: Rank, path: Path) -> bool:
    """Whether this job's first rank hosts the dispatcher."""
    with pool_file.changing(str(path.absolute())) as pool:
        mine = not pool.server or (pool.run.get("launcher"), pool.run.get("job")) == (rank.launcher, rank.job)
        if mine:
            pool.server, pool.run = "", rank.run
        return mine


def _start_dispatcher(rendezvous: Rendezvous, rank: Rank, advertise: str) -> None:
    args = ["--pool", str(rendezvous.path), "--host", "0.0.0.0", "-p", "0", "--follow", "--expect", str(rank.size)]
    process = rendezvous.children.start("gt.server", *args, *(["--advertise", advertise] if advertise else []))
    pool_file.await_server(rendezvous.path, START_TIMEOUT, lambda: "" if process.poll() is None else "its dispatcher ended")


def _await(rank: Rank, path: Path) -> None:
    """Wait for the dispatcher's address from the first rank, ignoring an earlier attempt's address."""

    def stale(pool: pool_file.Pool) -> bool:
        same = (pool.run.get("launcher"), pool.run.get("job")) == (rank.launcher, rank.job)
        return same and pool.run.get("attempt") != rank.attempt

    pool_file.await_server(path, START_TIMEOUT, stale=stale)
