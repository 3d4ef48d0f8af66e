"""A pool on a real Ray cluster of several nodes on this host, one of which is lost."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Commands
from processes import LAUNCH, ROOT, free_port, until

import gt
from gt.errors import ConnectionFailed, GTError, SessionLost, WorkerLost
from gt.pools.pool import RunningPool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed (pip install ray)"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


def node(gpus: int = 0) -> dict[str, int]:
    """A small node, with GPUs that Ray only counts. Where its ports are not given, Ray waits for at most 15 s until the node's
    agents have chosen them; for the agent's HTTP port it always does, and a node whose agent takes longer to load aborts."""
    ports = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {"num_cpus": 2, "num_gpus": gpus, "object_store_memory": 100 << 20, **{name: free_port() for name in ports}}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disconnected: None) -> None:
    monkeypatch.setenv("RAY_agent_register_timeout_ms", str(int(LAUNCH * 1000)))
    monkeypatch.setenv("GT_POOLS", str(tmp_path / "pools"))
    monkeypatch.setenv("GT_COLLECTIVES", "mail")  # of the workers, too: PyTorch takes long to load
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture
def nodes(settings: None) -> Iterator[Any]:
    """A head node and two others, of two CPUs each."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        cluster.add_node(**node(), include_dashboard=False, include_log_monitor=False, no_monitor=True)
        others = [cluster.add_node(**node()) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, others
    finally:
        ray.shutdown()
        cluster.shutdown()


def joined() -> dict[str, Any]:
    return gt.debug.get_worker_stats()


def state(name: str) -> dict[str, Any]:
    """The state of a process of a pool, from its actor."""
    import ray

    return ray.get(ray.get_actor(name, namespace="gt").state.remote())


def test_a_pool_on_ray_outlives_a_node_and_scales(nodes: Any) -> None:
    import ray

    cluster, others = nodes
    a = np.arange(16, dtype="f4").reshape(4, 4)
    with gt.pool("ray", workers=3, backend="numpy", name="rays", strategy="SPREAD") as pool:
        until(lambda: len(joined()) == 3, LAUNCH, "three workers")
        assert (gt.from_numpy(a) @ gt.from_numpy(a)).numpy().tolist() == (a @ a).tolist()
        where = {f"rays-{i}": state(f"rays-{i}")["node"] for i in range(3)}
        assert len(set(where.values())) == 3, "spread over all nodes"
        assert state("rays-dispatcher")["node"] == cluster.head_node.node_id
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        with gt.signal("rows"):
            x = gt.from_numpy(a)
        x.sum().item()
        lost = others[0]
        gone = next(name for name, node in where.items() if node == lost.node_id)
        cluster.remove_node(lost, allow_graceful=False)
        until(lambda: gone not in joined(), LAUNCH, "the loss is known")
        with pytest.raises(WorkerLost):
            x.numpy()
        cluster.add_node(**node())  # the placement group takes its room again
        until(lambda: gone in joined(), LAUNCH, "Ray has started the lost worker again")
        assert (gt.from_numpy(a) + 1).sum().item() == (a + 1).sum()
        y = gt.from_numpy(a)
        y.sum().item()
        pool.scale(4)
        until(lambda: len(joined()) == 4, LAUNCH, "a fourth worker")
        pool.scale(1)
        until(lambda: len(joined()) == 1, LAUNCH, "the others have left")
        assert (y.numpy() == a).all(), "their tensors were moved"
        assert [m.state for m in pool.members()] == ["running"] * 2
    assert not ray.util.list_named_actors(all_namespaces=True)


def test_a_pool_on_ray_grows_while_queues_are_long_and_shrinks_when_idle(nodes: Any) -> None:
    import ray

    options = {"max_workers": 2, "every": 1.0, "up_after": 2.0, "down_after": 3.0}
    with gt.pool("ray", workers=1, backend="numpy", name="grows", **options) as pool:
        until(lambda: len(joined()) == 1, LAUNCH, "one worker")
        assert state("grows-dispatcher")["node"] == nodes[0].head_node.node_id

        def busy() -> bool:
            x = y = gt.randn(600, 600) / 600
            for _ in range(400):  # some seconds, much longer than the pause between two checks
                y = y @ x
            y.sum().item()
            return len(joined()) == 2

        until(busy, LAUNCH, "a second worker while the first is busy")
        until(lambda: len(joined()) == 1, LAUNCH, "the idle one has left")
        assert (gt.ones(2, 2) + 1).sum().item() == 8
        ray.kill(ray.get_actor("grows-dispatcher", namespace="gt"), no_restart=False)
        until(lambda: reconnected(pool), LAUNCH, "the new dispatcher")
        until(lambda: len(joined()) == 1, LAUNCH, "its worker")
        until(busy, LAUNCH, "a second worker of the new dispatcher")


def reconnected(pool: RunningPool) -> bool:
    try:
        pool.connect()
        return bool(joined())
    except GTError:  # the old dispatcher's end is not known yet
        return False


def test_a_dispatcher_that_ray_restarts_is_found_again(nodes: Any, gt_command: Commands) -> None:
    import ray

    with gt.pool("ray", workers=1, backend="numpy", name="again") as pool:
        until(lambda: len(joined()) == 1, LAUNCH, "one worker")
        x, first = gt.ones(3), pool.server
        ray.kill(ray.get_actor("again-dispatcher", namespace="gt"), no_restart=False)
        with pytest.raises(SessionLost, match=f"the dispatcher at tcp://{first} went away"):
            until(lambda: x.sum().item() != 3, LAUNCH, "the loss")
        gt.disconnect()
        with pytest.raises(ConnectionFailed, match="'again' was last seen there, and `gt status again` asks its cluster again"):
            gt.connect("again", timeout=0.5)
        until(lambda: "1 workers have joined: again-0" in gt_command("status", "again"), LAUNCH, "the worker has joined it")
        gt.connect("again")
        assert gt.ones(3).sum().item() == 3
        assert pool.server == first, "as of the start"
        pool.connect()
        assert pool.server != first
        assert gt.ones(3).sum().item() == 3
        assert state("again-dispatcher")["node"] == nodes[0].head_node.node_id


@pytest.fixture
def dashboard(settings: None) -> Iterator[str]:
    """Two nodes of two CPUs and two GPUs, as Ray counts them, and Ray's dashboard: its address."""
    pytest.importorskip("ray.dashboard.optional_deps", reason="Ray's dashboard is not installed (pip install 'ray[default]')")
    import ray
    from ray.cluster_utils import Cluster

    cluster, port = Cluster(), free_port()
    try:
        cluster.add_node(**node(2), include_dashboard=True, dashboard_host="127.0.0.1", dashboard_port=port, no_monitor=True)
        cluster.add_node(**node(2))
        ray.init(address=cluster.address, log_to_driver=False)
        yield f"http://127.0.0.1:{port}"
    finally:
        ray.shutdown()
        cluster.shutdown()


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def listed(dashboard: str, what: str) -> list[dict[str, Any]]:
    return json.loads(fetched(f"{dashboard}/api/v0/{what}?detail=1"))["data"]["result"]["result"]


IN_A_JOB = """
    import ray, gt

    with gt.pool("ray", workers=1, backend="numpy", name="of-a-job"):
        print("product", (gt.ones(3, 3) @ gt.ones(3, 3)).sum().item())
        print("job", ray.get_runtime_context().get_job_id(), ray.get_actor("of-a-job-0", namespace="gt"))
"""


def test_ray_s_dashboard_has_the_logs_and_gpus_of_workers_and_a_job_has_its_own_pool(
    dashboard: str, gt_command: Commands, tmp_path: Path
) -> None:
    gt_command(
        "up", "ray", "--workers", "2", "--backend", "numpy", "--name", "seen", "--gpus-per-worker", "1", "--strategy", "PACK"
    )
    gt.connect()
    until(lambda: len(joined()) == 2, LAUNCH, "two workers")
    gt.disconnect()
    actors = {a["name"]: a for a in listed(dashboard, "actors")}
    for name, line in {
        "seen-0": r"gt-worker: seen-0 is worker [01]: numpy on cpu",
        "seen-1": r"gt-worker: seen-1 is worker [01]: numpy on cpu",
        "seen-dispatcher": r"gt-server: worker seen-1 joined with index [01]",
    }.items():
        log = f"{dashboard}/api/v0/logs/file?actor_id={actors[name]['actor_id']}&lines=100&suffix=err"
        assert re.search(line, fetched(log)), f"what the dashboard's page of actor {name} shows"
    [group] = [g for g in listed(dashboard, "placement_groups") if g["name"] == "seen"]
    assert [b["unit_resources"] for b in group["bundles"]] == [{"CPU": 1.0, "GPU": 1.0}] * 2
    assert len({b["node_id"] for b in group["bundles"]}) == 1, "packed on one node"
    gt_command("down")
    until(lambda: all(a["state"] == "DEAD" for a in listed(dashboard, "actors")), LAUNCH, "the end of all actors")

    from ray.job_submission import JobSubmissionClient

    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(IN_A_JOB))
    jobs = JobSubmissionClient(dashboard)
    variables = {"PYTHONPATH": str(ROOT), "GT_POOLS": str(tmp_path / "job-pools"), "GT_COLLECTIVES": "mail"}
    job = jobs.submit_job(entrypoint=f"{sys.executable} {script}", runtime_env={"env_vars": variables})
    until(lambda: jobs.get_job_status(job).is_terminal(), LAUNCH, "the job's end")
    assert "product 27.0" in jobs.get_job_logs(job) and jobs.get_job_status(job) == "SUCCEEDED", jobs.get_job_logs(job)
