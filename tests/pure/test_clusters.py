"""Clusters without their programs: files, scripts, ranks and refused settings."""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gt import clusters
from gt.cli import parser
from gt.clusters import pool_file, ranks
from gt.clusters.groups import Grouped, Torchrun
from gt.clusters.ssh import Host, read_hosts, record_for
from gt.errors import ConfigError, ConnectionFailed
from gt.server import __main__ as server_main
from gt.tensor_ops.cpp.build import BuildError, checked_library
from gt.worker import __main__ as worker_main

KEYS = {"key": "k" * 32, "worker_key": "w" * 32}


@pytest.fixture
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GT_POOLS", str(tmp_path / "pools"))
    return tmp_path / "pools"


def made(name: str = "mine", cluster: str = "local", workers: int = 2, **options: Any) -> pool_file.Pool:
    return pool_file.Pool(name=name, cluster=cluster, workers=workers, options=options, **KEYS)


# The file of a pool


def test_a_new_pools_file_is_whole_from_its_first_moment(pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a launcher wait for it: one that read an empty file ended."""
    seen: list[bool] = []
    monkeypatch.setattr(pool_file.os, "fsync", lambda fd: seen.append((pools / "new.json").exists()))
    path = pool_file.create(made("new"))
    assert (
        seen == [False] and pool_file.read(path).name == "new" and sorted(p.name for p in path.parent.iterdir()) == ["new.json"]
    )


def test_a_pool_s_file_is_its_owner_s_alone(pools: Path) -> None:
    path = pool_file.create(made())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(pools.stat().st_mode) == 0o700
    assert pool_file.find("mine").keys == ("k" * 32, "w" * 32) and pool_file.find() == pool_file.read(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="has mode 640: make it yours alone by `chmod 600`"):
        pool_file.find("mine")


def test_a_file_that_others_could_have_written_is_no_pool_of_this_user(pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pool_file.create(made())
    pools.chmod(0o777)
    with pytest.raises(ConfigError, match="has mode 777, so others decide"):
        pool_file.find("mine")
    pools.chmod(0o700)
    given_away(path, monkeypatch)
    with pytest.raises(ConfigError, match="belongs to user"):
        pool_file.read(path)


def given_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's file: given to it by root, or seen from its side."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


def test_a_lock_is_no_way_to_another_file(pools: Path, tmp_path: Path) -> None:
    path = pool_file.create(made())
    path.with_suffix(".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), pool_file.changing("mine"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_library_that_others_could_have_written_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "decode.so"
    path.touch(0o644)
    assert checked_library(path) == path
    for folder, mode, was in ((path, 0o646, 0o644), (tmp_path, 0o777, 0o700)):
        folder.chmod(mode)
        with pytest.raises(BuildError, match=f"has mode {mode:o}"):
            checked_library(path)
        folder.chmod(was)
    given_away(path, monkeypatch)
    with pytest.raises(BuildError, match="belongs to user"):
        checked_library(path)


def test_torchrun_imports_nothing_from_the_working_directory() -> None:
    assert Torchrun().launcher(2)[1:4] == ["-P", "-m", "torch.distributed.run"]


def test_keys_are_in_no_text_of_a_pool() -> None:
    assert "k" * 8 not in repr(made()) and "w" * 8 not in f"{made()}"


def test_a_pool_is_found_by_name_by_variable_or_where_it_is_the_only_one(pools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionFailed, match="no pool is known"):
        pool_file.find()
    pool_file.create(made("one"))
    pool_file.create(made("two"))
    with pytest.raises(ConnectionFailed, match="there are several: known pools are one, two"):
        pool_file.find()
    monkeypatch.setenv("GT_POOL", "two")
    assert pool_file.find().name == "two" and pool_file.find("one").name == "one"
    with pytest.raises(ConnectionFailed, match="no pool 'three'.*known pools are one, two"):
        pool_file.find("three")
    with pytest.raises(ConfigError, match="there is a pool 'one' already"):
        pool_file.create(made("one"))


def test_an_address_that_a_dispatcher_wrote_outlives_the_command_that_started_it(pools: Path) -> None:
    mine = made()
    path = pool_file.create(mine)
    pool_file.announce(path, "10.0.0.1:9000")
    mine.members["a"] = {"job": "7"}
    pool_file.save(mine)
    assert pool_file.find("mine").server == "10.0.0.1:9000" and pool_file.find("mine").members == {"a": {"job": "7"}}


@pytest.mark.parametrize("name", ["", "../up", "Upper", "-a", "a-", "x" * 60, "a b"])
def test_names_that_no_file_or_label_can_have_are_refused(name: str) -> None:
    if name:
        with pytest.raises(ConfigError, match="cannot be called"):
            pool_file.make(name, "local", 1)
    else:
        assert pool_file.NAME.fullmatch(pool_file.make("", "local", 1).name)


def test_an_unknown_cluster_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no cluster 'slrm': available are .*local.*slurm"):
        clusters.cluster("slrm")


@pytest.mark.parametrize("name", clusters.CLASSES)
def test_every_cluster_has_all_of_the_seam(name: str) -> None:
    found = clusters.cluster(name)
    assert found.name == name and found.summary
    for method in ("start", "grow", "shrink", "watch", "stop"):
        assert getattr(type(found), method) is not getattr(clusters.Cluster, method), f"{name} cannot {method}"
    with pytest.raises(ConfigError, match="one device"):
        found.check(made(cluster=name, gpus_per_worker=2, hosts=os.devnull))


# Hosts


def test_hosts_are_read_with_their_slots() -> None:
    assert read_hosts("# all\none\nme@two slots=4  # big\n\n") == [Host("one"), Host("me@two", 4)]
    for wrong in ("one slot=2", "one slots=x", "-oProxyCommand=x"):
        with pytest.raises(ConfigError, match="line 1"):
            read_hosts(wrong)
    with pytest.raises(ConfigError, match="lists no host"):
        read_hosts("# none\n")


def test_a_worker_on_another_host_learns_address_and_keys_and_nothing_else() -> None:
    mine = made(hosts="secret-path")
    mine.server, mine.members = "10.0.0.1:1", {"a": {}}
    assert b"secret-path" not in record_for(mine)
    there = pool_file.parse(record_for(mine), "standard input")
    assert there.keys == mine.keys and there.server == mine.server and record_for(mine).count(b"\n") == 1


# Ranks

ENVIRONMENTS = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "ab"},
    "mpi": {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "8",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "PMIX_NAMESPACE": "ab",
    },
    "slurm": {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "ab"},
}


@pytest.mark.parametrize("launcher", ENVIRONMENTS)
def test_each_launcher_gives_the_rank_of_this_process(launcher: str) -> None:
    found = ranks.rank_of(launcher, ENVIRONMENTS[launcher])
    assert (found.rank, found.size, found.local, found.job) == (3, 8, 1, "ab")
    with pytest.raises(ConfigError, match=f"was this worker started by {launcher}"):
        ranks.rank_of(launcher, {})


def test_mpich_s_variables_are_known_too() -> None:
    assert ranks.rank_of("mpi", {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}).rank == 1


def test_a_job_that_runs_again_does_not_take_its_earlier_self_s_address(pools: Path) -> None:
    env = {**ENVIRONMENTS["slurm"], "SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}
    first, again = ranks.rank_of("slurm", env), ranks.rank_of("slurm", {**env, "SLURM_RESTART_COUNT": "1"})
    mine = made("slurm-ab", "slurm")
    path = pool_file.create(mine)
    assert ranks._hosts(first, path), "nobody has a dispatcher yet"
    pool_file.announce(path, "10.0.0.1:1")
    other = ranks.rank_of("slurm", {**env, "SLURM_JOB_ID": "cd"})
    assert not ranks._hosts(other, path), "another job of the pool joins"
    assert ranks._hosts(again, path) and not pool_file.find("slurm-ab").server
    pool_file.announce(path, "10.0.0.2:1")
    ranks._await(again, path)  # at once: the address is this attempt's
    with pytest.raises(AssertionError, match="does not sleep"):
        ranks._await(first, path)


# Groups


class Few(Grouped):
    name = "few"
    ended: list[str]

    def launch(self, pool: pool_file.Pool, group: str, count: int) -> dict[str, Any]:
        return {"job": group}

    def end(self, handles: list[dict[str, Any]]) -> None:
        self.ended = [h["job"] for h in handles]


def test_groups_end_as_wholes_the_newest_first_and_never_the_dispatcher_s() -> None:
    few, mine = Few(), made(workers=4)
    few.start(mine)
    few.grow(mine, 2)
    few.grow(mine, 1)
    assert len(mine.members) == 7 and list(few.groups(mine)) == ["mine-0", "mine-1", "mine-2"]
    with pytest.raises(ConfigError, match="these have 4, 2, 1 workers: cannot take 4"):
        few.shrink(mine, 4)
    few.shrink(mine, 3)
    assert few.ended == ["mine-2", "mine-1"] and len(mine.members) == 4
    few.stop(mine)
    assert few.ended == ["mine-0"] and not mine.members


# SLURM


def test_the_sbatch_script_passes_options_through_and_drains_before_the_limit(pools: Path) -> None:
    mine = made(
        cluster="slurm", workers=8, partition="gpu", time="01:00:00", gres="gpu:8", gpus_per_worker=1, sbatch="--exclusive"
    )
    script = clusters.cluster("slurm").manifests(mine)
    lines = script.splitlines()
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert lines[0] == "#!/bin/bash" and all(lines[i].startswith("#SBATCH") for i in range(1, 1 + len(asked)))
    wanted = {
        "--ntasks=8",
        "--partition=gpu",
        "--time=01:00:00",
        "--gres=gpu:8",
        "--gpus-per-task=1",
        "--exclusive",
        "--requeue",
    }
    assert wanted | {"--signal=B:USR1@90", "--job-name=mine-0"} <= asked
    assert "-m gt.worker --slurm --pool" in script and "scontrol requeue" in script and f"GT_POOLS={pools}" in script
    assert not any(key in script for key in KEYS.values())
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    once = clusters.cluster("slurm").manifests(made(cluster="slurm", no_requeue=True))
    assert "#SBATCH --no-requeue" in once and "scontrol requeue" not in once


# Kubernetes


def manifests(**options: Any) -> list[dict[str, Any]]:
    mine = made(cluster="k8s", workers=4, **options)
    return list(yaml.safe_load_all(clusters.cluster("k8s").manifests(mine)))


@pytest.mark.parametrize("options", [{}, {"gpus_per_worker": 1, "namespace": "ml", "with_keys": True}])
def test_the_manifests_fit_the_schema_of_kubernetes(options: dict[str, Any]) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    found = manifests(**options)
    kinds = [m["kind"] for m in found]
    assert sorted(kinds) == sorted(
        ["Secret", "Service", "Service", "NetworkPolicy", "NetworkPolicy", "PodDisruptionBudget", "PodDisruptionBudget",
         "Deployment", "StatefulSet"]
    )  # fmt: skip
    for manifest in found:
        for version in ("1.28", "1.32"):
            validate.validate(manifest, version, strict=True)
    broken = {**found[-1], "spec": {**found[-1]["spec"], "replicas": "four"}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, "1.32", strict=True)


def test_the_parts_of_a_pool_on_kubernetes_fit_one_another() -> None:
    found = {(m["kind"], m["metadata"]["name"]): m for m in manifests(gpus_per_worker=1, image="my/gt:1")}
    workers, dispatcher = found["StatefulSet", "mine-worker"]["spec"], found["Deployment", "mine"]["spec"]
    for spec in (workers, dispatcher):
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        assert container["image"] == "my/gt:1" and container["readinessProbe"]["exec"] and container["livenessProbe"]["exec"]
        mounts = {m["name"] for m in container["volumeMounts"]}
        assert mounts == {v["name"] for v in pod["volumes"]} and pod["securityContext"]["runAsNonRoot"]
        for variable in container["env"]:
            if "secretKeyRef" in variable.get("valueFrom", {}):
                named = variable["valueFrom"]["secretKeyRef"]
                assert named["key"] in found["Secret", named["name"]]["stringData"]
        matching = [s for kind, s in found.items() if kind[0] == "Service" and s["spec"]["selector"].items() <= labels.items()]
        assert len(matching) == 1
    container = workers["template"]["spec"]["containers"][0]
    assert workers["replicas"] == 4 and container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    drain = next(int(v["value"]) for v in container["env"] if v["name"] == "GT_DRAIN")
    assert drain < workers["template"]["spec"]["terminationGracePeriodSeconds"]
    command, port = container["command"], str(found["Service", "mine"]["spec"]["ports"][0]["port"])
    assert command[command.index("--host") + 1] == "mine" and command[command.index("-p") + 1] == port


def test_keys_are_in_manifests_only_where_they_are_asked_for() -> None:
    assert not any(key in str(manifests()) for key in KEYS.values())
    secret = manifests(with_keys=True)[0]
    assert secret["stringData"] == {"GT_KEY": KEYS["key"], "GT_WORKER_KEY": KEYS["worker_key"]}


def test_the_commands_of_the_pods_are_commands_of_gt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed by the parser that will see it."""
    for manifest in manifests():
        if "template" not in manifest["spec"] if "spec" in manifest else True:
            continue
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        assert container["command"][:3] == ["python", "-P", "-m"], "the working directory is imported by none"
        module, *args = container["command"][3:]
        parse = {"gt.server": server_main.arguments, "gt.worker": worker_main.arguments}[module]
        parse(argparse.ArgumentParser()).parse_args(args)
        for probe in ("readinessProbe", "livenessProbe"):
            args = container[probe]["exec"]["command"]
            assert args[:4] == ["python", "-P", "-m", "gt"] and parser().parse_args(args[4:]).run is not None


def test_the_image_copies_existing_files_and_all_of_the_package() -> None:
    root = Path(__file__).parents[2]
    lines = (root / "Dockerfile").read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]}
    assert all((root / name).exists() for name in copied)
    project = tomllib.loads((root / "pyproject.toml").read_text())
    texts = {project["project"]["readme"], *project["project"]["license-files"]}
    modules = project["tool"]["setuptools"]["py-modules"]
    assert {f"{m}.py" for m in modules} | {"gt", "setup.py", "pyproject.toml"} | texts <= copied
