"""A pool on Kubernetes: manifests for `kubectl apply` of a Deployment of the dispatcher, a StatefulSet of workers, and their
services, policies and secrets. Clients run in pods of the same namespace, as they exchange tensors with workers directly."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from typing import Any

import yaml

from gt.clusters.cluster import ENDED, RUNNING, STARTING, Cluster, Member
from gt.clusters.pool_file import Pool
from gt.errors import ConfigError, ConnectionFailed

PORT = 9000
LABEL = "gt-pool"  # label of all objects of a pool
CLIENT = "gt-client"  # label of pods that may connect to a pool
ROLE = "gt-role"
WITHHELD = "withheld: --with-keys prints it"
GRACE = 60  # seconds from SIGTERM to SIGKILL, in which workers drain
STATES = {"Running": RUNNING, "Pending": STARTING}


class Kubernetes(Cluster):
    name = "k8s"
    summary = "pods of Kubernetes, by kubectl"

    def arguments(self, p: argparse.ArgumentParser) -> None:
        p.add_argument(
            "--image", default="gt:latest", help="image of all pods, built from GT's Dockerfile (default: gt:latest)"
        )
        p.add_argument("--namespace", default="default", help="namespace of the pods (default: default)")
        p.add_argument("--cpu", default="1", help="processors of each worker (default: 1)")
        p.add_argument("--memory", default="4Gi", help="memory of each worker (default: 4Gi)")
        p.add_argument("--shared-memory", default="1Gi", help="part of the memory that may be /dev/shm (default: 1Gi)")
        p.add_argument("--kubectl", default="kubectl", help="kubectl command, with its context if need be (default: kubectl)")
        p.add_argument("--with-keys", action="store_true", help="with --dry-run: print the keys as well")

    def check(self, pool: Pool) -> None:
        super().check(pool)
        if pool.options.get("plain_collectives"):
            raise ConfigError(
                "k8s: --plain-collectives: set GT_PLAIN_COLLECTIVES in manifests of your own (gt up k8s --dry-run)"
            )

    def manifests(self, pool: Pool) -> str:
        return _written(objects(pool, keys=bool(pool.options.get("with_keys"))))

    def start(self, pool: Pool, follow: bool = False) -> None:
        self._kubectl(pool, "apply", "-f", "-", data=_written(objects(pool, keys=True)))
        pool.server = f"{pool.name}.{_space(pool)}.svc:{PORT}"
        self._count(pool, pool.workers)

    def _count(self, pool: Pool, workers: int) -> None:
        pool.members = {f"{pool.name}-worker-{i}": {} for i in range(workers)}

    def _scale(self, pool: Pool, workers: int) -> None:
        self._kubectl(pool, "scale", f"statefulset/{pool.name}-worker", f"--replicas={workers}")
        self._count(pool, workers)

    def grow(self, pool: Pool, count: int) -> None:
        self._scale(pool, len(pool.members) + count)

    def shrink(self, pool: Pool, count: int) -> None:
        """Kubernetes sends SIGTERM to the pods with the highest numbers; they drain on it."""
        self._scale(pool, len(pool.members) - count)

    def watch(self, pool: Pool) -> list[Member]:
        found = json.loads(self._kubectl(pool, "get", "pods", "-l", f"{LABEL}={pool.name}", "-o", "json"))["items"]
        pods = {pod["metadata"]["name"]: pod for pod in found}
        names = [n for n in pods if pods[n]["metadata"]["labels"].get(ROLE) == "dispatcher"]
        return [_member(name, pods.get(name)) for name in (*names, *pool.members)]

    def stop(self, pool: Pool) -> None:
        kinds = "deployment,statefulset,service,secret,networkpolicy,poddisruptionbudget"
        self._kubectl(pool, "delete", kinds, "-l", f"{LABEL}={pool.name}", "--ignore-not-found")
        pool.members = {}

    def _kubectl(self, pool: Pool, *args: str, data: str = "") -> str:
        command = [*str(pool.options.get("kubectl") or "kubectl").split(), "-n", _space(pool), *args]
        if not shutil.which(command[0]):
            raise ConfigError(f"k8s: there is no {command[0]!r} here; `gt up k8s --dry-run` prints the manifests")
        done = subprocess.run(command, input=data, capture_output=True, text=True)
        if done.returncode:
            raise ConnectionFailed(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return done.stdout


def _space(pool: Pool) -> str:
    return str(pool.options.get("namespace") or "default")


def _member(name: str, pod: dict[str, Any] | None) -> Member:
    if pod is None:
        return Member(name, ENDED, "no such pod")
    phase = pod["status"].get("phase", "")
    ready = all(c.get("ready") for c in pod["status"].get("containerStatuses", [])) and phase == "Running"
    state = STATES.get(phase, ENDED)
    return Member(
        name, STARTING if state == RUNNING and not ready else state, f"{phase} on {pod['spec'].get('nodeName', 'no node')}"
    )


def _written(found: list[dict[str, Any]]) -> str:
    return yaml.safe_dump_all(found, sort_keys=False, explicit_start=True)


def objects(pool: Pool, keys: bool) -> list[dict[str, Any]]:
    """The Kubernetes objects of a pool, in the order of their creation."""
    secret = (
        {"GT_KEY": pool.key, "GT_WORKER_KEY": pool.worker_key} if keys else dict.fromkeys(("GT_KEY", "GT_WORKER_KEY"), WITHHELD)
    )
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": _meta(pool, "keys"), "type": "Opaque", "stringData": secret},
        _service(pool, "", "dispatcher", headless=False),
        _service(pool, "worker", "worker", headless=True),
        _policy(pool, "dispatcher", [{"port": PORT, "protocol": "TCP"}]),
        _policy(pool, "worker", []),
        _budget(pool, "dispatcher", minAvailable=1),
        _budget(pool, "worker", maxUnavailable=1),
        _dispatcher(pool),
        _workers(pool),
    ]


def _meta(pool: Pool, suffix: str = "", role: str = "") -> dict[str, Any]:
    labels = {LABEL: pool.name, **({ROLE: role} if role else {})}
    return {"name": f"{pool.name}-{suffix}" if suffix else pool.name, "namespace": _space(pool), "labels": labels}


def _selector(pool: Pool, role: str) -> dict[str, Any]:
    return {"matchLabels": {LABEL: pool.name, ROLE: role}}


def _service(pool: Pool, suffix: str, role: str, headless: bool) -> dict[str, Any]:
    spec: dict[str, Any] = {"selector": {LABEL: pool.name, ROLE: role}, "ports": [{"name": "gt", "port": PORT}]}
    if headless:  # its only purpose: a DNS name for each worker
        spec |= {"clusterIP": "None"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _meta(pool, suffix), "spec": spec}


def _policy(pool: Pool, role: str, ports: list[dict[str, Any]]) -> dict[str, Any]:
    """Only the pool's own pods and its clients may connect; workers listen on ports that the OS chooses."""
    peers = [{"podSelector": {"matchLabels": {label: pool.name}}} for label in (LABEL, CLIENT)]
    rule = {"from": peers, **({"ports": ports} if ports else {})}
    spec = {"podSelector": _selector(pool, role), "policyTypes": ["Ingress"], "ingress": [rule]}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": _meta(pool, role), "spec": spec}


def _budget(pool: Pool, role: str, **limit: int) -> dict[str, Any]:
    spec = {**limit, "selector": _selector(pool, role)}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": _meta(pool, role), "spec": spec}


def _probe(*args: str, every: int, failures: int, timeout: int = 10, **more: int) -> dict[str, Any]:
    """A probe that takes longer than its timeout counts as failed, as where a node is overloaded: liveness has more time."""
    command = ["python", "-P", "-m", "gt", "probe", *args]
    limits = {"periodSeconds": every, "timeoutSeconds": timeout, "failureThreshold": failures}
    return {"exec": {"command": command}, **limits, **more}


def _pod(pool: Pool, role: str, container: dict[str, Any]) -> dict[str, Any]:
    """A pod of one container, which does not run as root and writes only to memory and a scratch folder."""
    names = ("GT_KEY", "GT_WORKER_KEY")
    keys = [{"name": n, "valueFrom": {"secretKeyRef": {"name": f"{pool.name}-keys", "key": n}}} for n in names]
    pod_name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container["env"] = [pod_name, *keys, *({"name": k, "value": v} for k, v in container.pop("variables").items())]
    container |= {
        "name": role,
        "image": str(pool.options.get("image") or "gt:latest"),
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
    shared = {"medium": "Memory", "sizeLimit": str(pool.options.get("shared_memory") or "1Gi")}
    return {
        "metadata": {"labels": {LABEL: pool.name, ROLE: role}},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": GRACE,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "scratch", "emptyDir": {}}, {"name": "shared-memory", "emptyDir": shared}],
        },
    }


def _dispatcher(pool: Pool) -> dict[str, Any]:
    """Exactly one pod: a second would be another pool. The dispatcher's own loop answers its probes."""
    asked = ["dispatcher", "--port", str(PORT)]
    container = {
        "command": ["python", "-P", "-m", "gt.server", "--host", "0.0.0.0", "-p", str(PORT)],
        "ports": [{"name": "gt", "containerPort": PORT}],
        "variables": {"GT_VERBOSE": "1", "HOME": "/tmp"},
        "startupProbe": _probe(*asked, every=2, failures=30),
        "readinessProbe": _probe(*asked, every=10, failures=2),
        "livenessProbe": _probe(*asked, every=30, failures=3, timeout=30),
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "8Gi"}},
    }
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": _selector(pool, "dispatcher"),
        "template": _pod(pool, "dispatcher", container),
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": _meta(pool, "", "dispatcher"), "spec": spec}


def _workers(pool: Pool) -> dict[str, Any]:
    """A worker is ready when its dispatcher lists it. A worker that a reachable dispatcher does not list is restarted."""
    o = pool.options
    limits = {"memory": str(o.get("memory") or "4Gi")}
    if o.get("gpus_per_worker"):
        limits["nvidia.com/gpu"] = str(o["gpus_per_worker"])
    asked = ["worker", "--host", pool.name, "--port", str(PORT)]
    container = {
        "command": [
            "python", "-P", "-m", "gt.worker", "--host", pool.name, "-p", str(PORT), "--id", "$(POD_NAME)", "--timeout", "60",
            *(["--backend", pool.backend] if pool.backend else []),
        ],
        "variables": {"GT_VERBOSE": "1", "HOME": "/tmp", "GT_DRAIN": str(GRACE - 15)},
        "readinessProbe": _probe(*asked, every=10, failures=2),
        "livenessProbe": _probe(*asked, "--unless-unreachable", every=30, failures=4, timeout=30, initialDelaySeconds=60),
        "resources": {"requests": {"cpu": str(o.get("cpu") or "1"), "memory": limits["memory"]}, "limits": limits},
    }  # fmt: skip
    spec = {
        "replicas": pool.workers,
        "serviceName": f"{pool.name}-worker",
        "podManagementPolicy": "Parallel",
        "selector": _selector(pool, "worker"),
        "template": _pod(pool, "worker", container),
    }
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": _meta(pool, "worker", "worker"), "spec": spec}
