"""Pools by way of real launchers: sshd on loopback, torchrun, mpirun. One that is not installed is skipped, with the reason."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HOLDS, Commands, shown
from processes import LAUNCH, Processes, free_port, until

SSHD = shutil.which("sshd") or next((p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if os.path.exists(p)), "")


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[str]:
    """The ssh command of a server on loopback that knows one key, made here."""
    if not SSHD or not shutil.which("ssh"):
        pytest.skip("sshd or ssh is not installed (Debian: openssh-server)")
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n"
        f"UsePAM no\nPasswordAuthentication no\nPidFile none\n"
    )
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "config"], stderr=log, stdin=subprocess.DEVNULL)
    try:
        until(lambda: "listening" in (folder / "log").read_text() or server.poll() is not None, what="sshd listens")
        assert server.poll() is None, (folder / "log").read_text()
        yield (
            f"ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "
            f"-i {folder}/user -p {port} -l {getpass.getuser()}"
        )
    finally:
        server.terminate()
        server.wait(10)


@pytest.mark.slow
def test_ssh_starts_workers_that_move_their_values_and_end(
    processes: Processes,
    gt_command: Commands,
    ssh: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("127.0.0.1 slots=2\nlocalhost\n")
    state = tmp_path / "state"
    front = f"TEST_MARK={processes.mark} GT_COLLECTIVES=mail XDG_STATE_HOME={state}"
    wrapped = tmp_path / "ssh.sh"
    wrapped.write_text(f'#!/bin/sh\nhost="$1"; shift\nexec {ssh} "$host" "export {front}; $1"\n')
    wrapped.chmod(0o755)
    args = ["up", "ssh", str(hosts), "--workers", "3", "--backend", "numpy", "--name", "far", "--ssh", str(wrapped)]
    gt_command(*args, "--advertise", "127.0.0.1")
    script = processes.start("-c", HOLDS, GT_POOLS=str(gt_command.pools)).wait_for("holds", LAUNCH)
    found = gt_command.status()
    where = [m["where"].partition(",")[0] for m in found["members"][1:]]
    assert sorted(where) == ["127.0.0.1", "127.0.0.1", "localhost"] and len(found["joined"]) == 3
    assert {m["state"] for m in found["members"]} == {"running"}
    for key in gt_command.key("far"):
        assert key not in shown(gt_command.pools) and key not in shown(state / "gt" / "pools")
    gt_command("scale", "1")
    script.go()
    script.wait_for("still 1")
    gt_command("down")
    script.kill()
    until(lambda: not processes.running(), what="the end of all workers")


def run_group(processes: Processes, command: Commands, *up: str) -> None:
    """A pool of two ranks and another group of one, which leaves again with its values."""
    command("up", *up, "--workers", "2", "--backend", "numpy", "--name", "group")
    until(lambda: command.status()["server"], LAUNCH, "a dispatcher")
    script = processes.start("-c", HOLDS, GT_POOLS=str(command.pools)).wait_for("holds", LAUNCH)
    assert sorted(command.status()["joined"]) == ["group-0-0", "group-0-1"]
    command("scale", "3")  # another launcher, whose rank joins a dispatcher that is there
    until(lambda: len(command.status()["joined"]) == 3, LAUNCH, "a third worker")
    assert "ends workers by groups" in command("scale", "1", status=1)
    command("scale", "2")
    script.go()
    script.wait_for("still 2")
    for key in command.key("group"):
        assert key not in shown(command.pools)
    command("down")
    script.kill()
    until(lambda: not processes.running(), LAUNCH, "the end of all ranks")


@pytest.mark.slow
def test_the_first_rank_of_torchrun_hosts_the_dispatcher(processes: Processes, gt_command: Commands) -> None:
    pytest.importorskip("torch", reason="torchrun comes with PyTorch, which is not installed")
    run_group(processes, gt_command, "torchrun")


@pytest.mark.slow
def test_the_first_rank_of_mpirun_hosts_the_dispatcher(processes: Processes, gt_command: Commands) -> None:
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    run_group(processes, gt_command, "mpi", "--launcher-options=--allow-run-as-root --oversubscribe")
