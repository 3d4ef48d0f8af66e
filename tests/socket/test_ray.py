"""A pool on a real Ray cluster of several nodes on this host, one of which is lost."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import LAUNCH, free_port, until

import gt
from gt.errors import WorkerLost

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed (pip install gt[ray])"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


def node() -> dict[str, int]:
    """A small node. Where its ports are not given, Ray waits for at most 15 s until the node's agents have chosen them."""
    ports = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    return {"num_cpus": 2, "object_store_memory": 100 << 20, **{name: free_port() for name in ports}}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disconnected: None) -> Iterator[Any]:
    """A head node and two others, of two CPUs each."""
    monkeypatch.setenv("RAY_agent_register_timeout_ms", str(int(LAUNCH * 1000)))
    monkeypatch.setenv("GT_POOLS", str(tmp_path / "pools"))
    monkeypatch.setenv("GT_COLLECTIVES", "mail")  # of the workers, too: PyTorch takes long to load
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
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


def test_a_pool_on_ray_outlives_a_node_and_scales(nodes: Any) -> None:
    import ray

    cluster, others = nodes
    a = np.arange(16, dtype="f4").reshape(4, 4)
    with gt.pool("ray", workers=3, backend="numpy", name="rays", strategy="SPREAD") as pool:
        until(lambda: len(joined()) == 3, LAUNCH, "three workers")
        assert (gt.from_numpy(a) @ gt.from_numpy(a)).numpy().tolist() == (a @ a).tolist()
        where = {f"rays-{i}": ray.get(ray.get_actor(f"rays-{i}", namespace="gt").state.remote())["node"] for i in range(3)}
        assert len(set(where.values())) == 3, "spread over all nodes"
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
    options = {"max_workers": 2, "every": 1.0, "up_after": 2.0, "down_after": 3.0}
    with gt.pool("ray", workers=1, backend="numpy", name="grows", **options):
        until(lambda: len(joined()) == 1, LAUNCH, "one worker")
        x = gt.randn(600, 600) / 600

        def busy() -> bool:
            y = x
            for _ in range(400):  # some seconds, much longer than the pause between two checks
                y = y @ x
            y.sum().item()
            return len(joined()) == 2

        until(busy, LAUNCH, "a second worker while the first is busy")
        until(lambda: len(joined()) == 1, LAUNCH, "the idle one has left")
        assert (gt.ones(2, 2) + 1).sum().item() == 8
