"""`torch.multiprocessing`: Python's own module. One script drives all workers, so there are no processes to start for ranks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing import Event, Lock, Manager, Pool, Process, Queue, cpu_count, get_context, set_start_method
from typing import Any

from gt import missing_names

__all__ = ["Event", "Lock", "Manager", "Pool", "Process", "Queue", "cpu_count", "get_context", "set_sharing_strategy"]
__all__ += ["set_start_method", "spawn"]


def spawn(fn: Callable, args: tuple = (), nprocs: int = 1, join: bool = True, daemon: bool = False, **settings: Any) -> None:
    """Call `fn(0, *args)` here: rank 0 of 1. More processes than one are refused."""
    if nprocs != 1:
        raise NotImplementedError(
            f"spawn of {nprocs} processes: one GT script drives all workers; call fn once, and shard by signals"
        )
    fn(0, *args)


def set_sharing_strategy(new_strategy: str) -> None:
    """Without effect: a tensor's memory is the workers'."""


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and hasattr(multiprocessing, name):
        return getattr(multiprocessing, name)
    raise missing_names.error(__name__, name)
