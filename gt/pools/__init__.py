"""Pools: a dispatcher and its workers on a cluster; the commands and `gt.pool` that start, scale and end them."""

from gt.pools.pool import RunningPool, open_pool, pool

__all__ = ["RunningPool", "open_pool", "pool"]
