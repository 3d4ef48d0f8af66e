"""For tests of GT and of backends: an in-process cluster, and the conformance test of backends."""

from gt.testing.close import assert_close, make_tensor
from gt.testing.cluster import Cluster, cluster
from gt.testing.conformance import Report, check_backend

__all__ = ["Cluster", "Report", "assert_close", "check_backend", "cluster", "make_tensor"]
