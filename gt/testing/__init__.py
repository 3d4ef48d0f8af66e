"""For tests, GT's own and those of backends: a whole GT in one thread, and what every backend has to pass."""

from gt.testing.close import assert_close, make_tensor
from gt.testing.cluster import Cluster, cluster
from gt.testing.conformance import Report, check_backend

__all__ = ["Cluster", "Report", "assert_close", "check_backend", "cluster", "make_tensor"]
