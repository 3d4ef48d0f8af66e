"""Where the processes of a pool run: on this host, on hosts reached by ssh, or under an engine that places processes. One class
for each, with the methods of `Cluster`; a class's optional dependencies are imported in its own file only."""

from __future__ import annotations

import importlib

from gt.clusters.cluster import Cluster
from gt.errors import ConfigError

CLASSES = {
    "local": "gt.clusters.local:Local",
    "ssh": "gt.clusters.ssh:SSH",
    "slurm": "gt.clusters.slurm:Slurm",
    "k8s": "gt.clusters.kubernetes:Kubernetes",
    "ray": "gt.clusters.ray:Ray",
    "torchrun": "gt.clusters.groups:Torchrun",
    "mpi": "gt.clusters.groups:MPI",
}


def register(name: str, target: str) -> None:
    """Have `gt up NAME` use a class of yours, given as `module:Class`; see `gt.clusters.cluster.Cluster`."""
    CLASSES[name] = target


def cluster(name: str) -> Cluster:
    if name not in CLASSES:
        raise ConfigError(f"no cluster {name!r}: available are {', '.join(sorted(CLASSES))}")
    module, _, cls = CLASSES[name].partition(":")
    return getattr(importlib.import_module(module), cls)()
