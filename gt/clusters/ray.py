"""A pool on Ray: the dispatcher and each worker are actors with a share of Ray's resources, in a placement group. Ray restarts
them when a node is lost. Inside a Ray job the pool uses that job's cluster."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from gt.clusters import processes
from gt.clusters.cluster import ENDED, RUNNING, STARTING, Cluster, Member
from gt.clusters.pool_file import Pool
from gt.clusters.ray_actors import SPACE, Keeper
from gt.errors import ConfigError, ConnectionFailed

STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")
ANSWER_TIMEOUT = 10.0  # seconds for an actor's answer
START_TIMEOUT = 300.0  # seconds for the dispatcher's start: Ray's autoscaler may have to add a node first
HEAD = "node:__internal_head__"  # a resource that the head node alone has
# Ray places an actor without resources on a random node, whatever node it prefers, and counts that node as idle
DISPATCHER = {"num_cpus": 0, "memory": 128 << 20}


class Ray(Cluster):
    name = "ray"
    summary = "actors of a Ray cluster"

    def arguments(self, p: argparse.ArgumentParser) -> None:
        p.add_argument(
            "--address",
            default="",
            help="address of the Ray cluster (default: RAY_ADDRESS, or the cluster that runs on this host)",
        )
        p.add_argument(
            "--strategy", default="SPREAD", choices=STRATEGIES, help="how the workers are placed over nodes (SPREAD)"
        )
        p.add_argument("--cpus-per-worker", type=float, default=1.0, help="Ray CPU resources of each worker (default: 1)")

    def check(self, pool: Pool) -> None:
        super().check(pool)
        strategy = pool.options.get("strategy", "SPREAD")
        if strategy not in STRATEGIES:
            raise ConfigError(f"ray: no strategy {strategy!r}: available are {', '.join(STRATEGIES)}")

    def _ray(self, pool: Pool) -> Any:
        """The `ray` module, connected; inside a Ray job, to that job's cluster."""
        try:
            import ray
        except ImportError:
            raise ConfigError("ray is not installed: `pip install ray`") from None
        if not ray.is_initialized():
            address = str(pool.options.get("address") or "auto")
            try:
                ray.init(address=address, namespace=SPACE, log_to_driver=False, configure_logging=False)
            except ConnectionError as wrong:
                raise ConnectionFailed(f"no Ray cluster at {address!r}: {wrong}; `ray start --head` starts one") from None
        return ray

    def start(self, pool: Pool, follow: bool = False) -> None:
        ray = self._ray(pool)
        pool.options["address"] = ray.get_runtime_context().gcs_address
        name, expected = f"{pool.name}-dispatcher", ["--expect", str(pool.workers)]
        self._actor(ray, pool, "dispatcher", name, self._head(ray), DISPATCHER, expected)
        self._await_dispatcher(pool)
        if pool.workers:
            bundles = [self._resources(pool)] * pool.workers
            strategy = str(pool.options.get("strategy") or "SPREAD")
            group = ray.util.placement_group(bundles, strategy=strategy, name=pool.name, lifetime="detached")
            self._add(ray, pool, pool.workers, group)

    def _head(self, ray: Any) -> Any:
        """The strategy that prefers the head node: Ray's own state is lost with it, and no autoscaler removes it."""
        head = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and HEAD in node["Resources"])
        return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(head, soft=True)

    def _await_dispatcher(self, pool: Pool) -> None:
        until = time.monotonic() + START_TIMEOUT
        while not pool.server:
            if time.monotonic() > until:
                raise ConnectionFailed(f"ray: the dispatcher of pool {pool.name!r} did not start within {START_TIMEOUT:g} s")
            pool.server = self.locate(pool)
            time.sleep(0.1)

    def locate(self, pool: Pool) -> str:
        ray = self._ray(pool)
        with contextlib.suppress(ValueError, ray.exceptions.RayError):  # the actor has ended, or is being restarted
            actor = ray.get_actor(f"{pool.name}-dispatcher", namespace=SPACE)
            return str(ray.get(actor.address.remote(), timeout=ANSWER_TIMEOUT))
        return ""

    def _resources(self, pool: Pool) -> dict[str, float]:
        gpus = float(pool.options.get("gpus_per_worker") or 0)
        return {"CPU": float(pool.options.get("cpus_per_worker") or 1.0), **({"GPU": gpus} if gpus else {})}

    def _add(self, ray: Any, pool: Pool, count: int, group: Any = None) -> None:
        """Start workers in the bundles of a placement group; without a group, wherever Ray has resources."""
        needs = self._resources(pool)
        asked = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)}
        for i in range(count):
            member = f"{pool.name}-{pool.started}"
            pool.started += 1
            where: Any = "SPREAD" if "SPREAD" in str(pool.options.get("strategy") or "SPREAD") else "DEFAULT"
            if group is not None:
                where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i)
            self._actor(ray, pool, "worker", member, where, asked, processes.worker_options(pool, member)[2:])
            pool.members[member] = {}

    def _actor(
        self, ray: Any, pool: Pool, role: str, name: str, where: Any, asked: Mapping[str, float], options: list[str]
    ) -> None:
        kept = Pool(name=pool.name, cluster=pool.cluster, key=pool.key, worker_key=pool.worker_key)
        made = ray.remote(Keeper).options(
            name=name, namespace=SPACE, lifetime="detached", max_restarts=-1, max_concurrency=4, scheduling_strategy=where,
            runtime_env={"env_vars": {"PYTHONPATH": processes.ROOT}}, **asked,
        )  # fmt: skip
        made.remote(role, name, msgspec.json.encode(kept), options)

    def grow(self, pool: Pool, count: int) -> None:
        self._add(self._ray(pool), pool, count)

    def _end(self, ray: Any, name: str, seconds: float) -> None:
        """End an actor's process, then the actor."""
        with contextlib.suppress(ValueError):  # the actor has ended
            actor = ray.get_actor(name, namespace=SPACE)
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(actor.stop.remote(seconds), timeout=seconds + ANSWER_TIMEOUT)
            ray.kill(actor)

    def shrink(self, pool: Pool, count: int) -> None:
        ray = self._ray(pool)
        for name in list(pool.members)[len(pool.members) - count :]:
            self._end(ray, name, processes.DRAINED)
            del pool.members[name]

    def watch(self, pool: Pool) -> list[Member]:
        ray = self._ray(pool)
        return [self._member(ray, name) for name in (f"{pool.name}-dispatcher", *pool.members)]

    def _member(self, ray: Any, name: str) -> Member:
        try:
            actor = ray.get_actor(name, namespace=SPACE)
            found = ray.get(actor.state.remote(), timeout=ANSWER_TIMEOUT)
        except ValueError:
            return Member(name, ENDED, "no such actor")
        except ray.exceptions.GetTimeoutError:
            return Member(name, STARTING, "Ray has not placed it yet")
        except ray.exceptions.ActorUnavailableError:
            return Member(name, STARTING, "Ray is restarting it")
        except ray.exceptions.RayError as wrong:
            return Member(name, ENDED, type(wrong).__name__)
        state = RUNNING if found["running"] and found["server"] else STARTING
        return Member(name, state, f"{found['host']} pid {found['pid']}, started {found['starts']} times")

    def stop(self, pool: Pool) -> None:
        ray = self._ray(pool)
        for name in (f"{pool.name}-dispatcher", *pool.members):
            self._end(ray, name, 5.0)
        with contextlib.suppress(ValueError):
            ray.util.remove_placement_group(ray.util.get_placement_group(pool.name))
        pool.members = {}
