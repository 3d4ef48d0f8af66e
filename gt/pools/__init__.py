"""Pools: a dispatcher and its workers on a cluster, started, watched, grown, shrunk and ended by the same few words."""

from gt.pools.pool import RunningPool, open_pool, pool

__all__ = ["RunningPool", "open_pool", "pool"]
