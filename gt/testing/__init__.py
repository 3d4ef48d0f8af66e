"""For tests, GT's own and those of backends: a whole GT in one thread, and what every backend has to pass."""

from gt.testing.cluster import Cluster, cluster
from gt.testing.conformance import Report, check_backend

__all__ = ["Cluster", "Report", "check_backend", "cluster"]
