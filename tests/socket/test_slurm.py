"""A pool on a real SLURM: munged, slurmctld and slurmd on this host, with a configuration of their own."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from commands import HOLDS, Commands, shown
from processes import LAUNCH, Processes, free_port, until

pytestmark = pytest.mark.slow
DAEMONS = ("munged", "slurmctld", "slurmd")
SCRATCH = "/usr/sbin:/usr/local/sbin"


def missing() -> str:
    path = f"{os.environ.get('PATH', '')}:{SCRATCH}"
    lacks = [name for name in (*DAEMONS, "sbatch", "srun", "scancel") if not shutil.which(name, path=path)]
    if lacks:
        return f"SLURM is not installed: no {', '.join(lacks)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as other users, so it wants root"


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One node with 16 processors and 4 GPUs, whatever it really has."""
    if why := missing():
        pytest.skip(why)
    folder, host = tmp_path_factory.mktemp("slurm"), socket.gethostname()
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{SCRATCH}")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    (folder / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=25
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 Gres=gpu:4 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File=/dev/tty[0-3]\n")
    munge = ["--foreground", "--force", f"--key-file={folder}/munge.key", f"--socket={folder}/munge.socket"]
    munge += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed"]
    daemons = []
    try:
        for command in (["munged", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            with open(folder / f"{command[0]}.out", "wb") as out:
                daemons.append(subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL))
            if command[0] == "munged":
                until((folder / "munge.socket").exists, what="munged listens")
        until(lambda: "idle" in said("sinfo", "--noheader", "--format=%T"), what="an idle node")
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def test_a_pool_of_jobs_grows_shrinks_with_its_values_and_is_requeued(
    slurm: None, processes: Processes, gt_command: Commands
) -> None:
    gt_command("up", "slurm", "--workers", "2", "--backend", "numpy", "--name", "jobs", "--partition", "test", "--time", "10")
    until(lambda: gt_command.status()["server"], LAUNCH, "a dispatcher in the first task")
    script = processes.start("-c", HOLDS, GT_POOLS=str(gt_command.pools)).wait_for("holds", LAUNCH)
    gt_command("scale", "3")
    until(lambda: len(gt_command.status()["joined"]) == 3, LAUNCH, "the second job has joined")
    found = gt_command.status()
    assert {m["state"] for m in found["members"]} == {"running"}
    assert len({m["where"] for m in found["members"][1:]}) == 2, "two jobs"
    gt_command("scale", "2")  # SLURM ends the job by SIGTERM, on which its worker passes on its tensors
    until(lambda: len(gt_command.status()["joined"]) == 2, LAUNCH, "the second job has left")
    script.go()
    script.wait_for("still 2")
    for key in gt_command.key("jobs"):
        assert key not in shown(gt_command.pools) and key not in (gt_command.pools / "jobs-0.sbatch").read_text()
    script.kill()
    job = re.findall(r"job (\d+)", found["members"][1]["where"])[0]
    first = gt_command.status()["server"]
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)  # as before the time limit
    until(lambda: "Restarts=1" in said("scontrol", "show", "job", job), LAUNCH, "the job is requeued")
    until(lambda: "PENDING" in said("squeue", "--noheader", "--format=%T", f"--jobs={job}"), LAUNCH, "it waits")
    until(lambda: "idle" in said("sinfo", "--noheader", "--format=%T"), LAUNCH, "a node without the job")
    # SLURM waits two minutes by itself: a node refuses a credential of the second in which it revoked the job's last one.
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], check=True)
    until(lambda: gt_command.status()["server"] not in ("", first), LAUNCH, "the job's second dispatcher")
    until(lambda: len(gt_command.status()["joined"]) == 2, LAUNCH, "its workers")
    gt_command("down")
    until(lambda: not processes.running(), LAUNCH, "the end of the job")


def test_workers_drain_before_a_real_time_limit_and_the_job_is_requeued(
    slurm: None, processes: Processes, gt_command: Commands
) -> None:
    """SLURM counts limits by the minute, and warns the job 90 s before its end, or up to a minute earlier. The job's workers
    pass their tensors on to one that was started by hand."""
    asked = ["--partition", "test", "--time", "3", "--gres", "gpu:2", "--dispatcher-here"]
    gt_command("up", "slurm", "--workers", "2", "--backend", "numpy", "--name", "short", *asked)
    by_hand = [
        "-m",
        "gt.worker",
        "--slurm",
        "--backend",
        "numpy",
        "--id",
        "stays",
        "--pool",
        str(gt_command.pools / "short.json"),
    ]
    steps = subprocess.Popen(["srun", "-n", "1", "-t", "9", sys.executable, *by_hand])
    job = re.findall(r"job (\d+)", gt_command.status()["members"][1]["where"])[0]
    shown = said("scontrol", "show", "job", job)
    assert "Partition=test" in shown and "TimeLimit=00:03:00" in shown and "gpu:2" in shown, shown
    until(lambda: len(gt_command.status()["joined"]) == 3, LAUNCH, "all workers")
    script = processes.start("-c", HOLDS, GT_POOLS=str(gt_command.pools)).wait_for("holds", LAUNCH)
    until(lambda: "Restarts=1" in said("scontrol", "show", "job", job), LAUNCH, "the job is requeued")
    script.go()
    script.wait_for("still ")
    told = "".join(path.read_text() for path in (gt_command.pools / "short.logs").iterdir())
    assert told.count("is about to leave") == 2 and "DUE TO TIME LIMIT" not in told, told
    script.kill()
    gt_command("down")
    steps.terminate()
    steps.wait(60)
    until(lambda: not processes.running(), LAUNCH, "the end of both jobs")


def test_workers_started_by_hand_with_srun_find_one_another(slurm: None, processes: Processes, gt_command: Commands) -> None:
    steps = subprocess.Popen(["srun", "-n", "3", "-t", "5", sys.executable, "-m", "gt.worker", "--slurm", "--backend", "numpy"])
    until(lambda: list(gt_command.pools.glob("slurm-*.json")), LAUNCH, "the pool's file")
    name = next(gt_command.pools.glob("slurm-*.json")).stem
    until(lambda: (gt_command.status(name) or {}).get("server"), LAUNCH, "a dispatcher")
    script = processes.start("-c", HOLDS, GT_POOLS=str(gt_command.pools)).wait_for("holds", LAUNCH)
    assert len(gt_command.status(name)["joined"]) == 3
    script.kill()
    subprocess.run(["scancel", name.removeprefix("slurm-")], check=True)
    steps.wait(60)
    until(lambda: not processes.running(), LAUNCH, "the end of the step")
    assert not list(gt_command.pools.glob("slurm-*.json")), "the first rank takes the pool's file away"
