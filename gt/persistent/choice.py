"""The executor of a kernel: the first candidate that is available here and has a decode kernel."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

from gt import backends
from gt.backends.rows import named
from gt.persistent.executor import Executor


class ExecutorChoice(NamedTuple):
    backend: str
    executor: type[Executor]
    fallback_reason: str | None


def load(name: str) -> type[Executor]:
    found: type[Executor] = named(backends.registry().rows[name].decode)
    return found


def reason_unavailable(name: str) -> str | None:
    """The reason why this backend cannot run a PersistentKernel here, or None."""
    return backends.registry().decode_reason(name)


def choose(backend: str | None, fallbacks: Any) -> ExecutorChoice:
    """Raises ValueError if no candidate can be used; warns if it is not the first."""
    if isinstance(fallbacks, str):
        raise TypeError(f"fallback_backends: expected a list of names, got the string {fallbacks!r}")
    registry = backends.registry()
    candidates = [backend or registry.default(), *(fallbacks or ())]
    for name in candidates:
        registry.name(name)  # an unknown name is an error even if it is not used
    found, refused = registry.first(candidates, registry.decode_reason)
    why = "; ".join(f"{name!r} is not available: {reason}" for name, reason in refused.items())
    if found is None:
        raise ValueError(f"no backend for PersistentKernel: {why}")
    if refused:
        warnings.warn(f"PersistentKernel runs on {found!r}, since {why}", RuntimeWarning, stacklevel=4)
    return ExecutorChoice(found, load(found), why or None)
