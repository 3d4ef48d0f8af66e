"""Resolves a client's signals to layouts on the connected workers."""

from __future__ import annotations

from typing import Any

from gt.dispatcher.plan import Target
from gt.errors import ProtocolError
from gt.spec import RANK, REPLICATE, Mesh, Shape, Shard

DIMENSIONS = 8  # most dimensions of a mesh


def check(signals: Any) -> dict[str, Any]:
    """A client's signals, checked."""
    for name, s in signals.items():
        found: list[Any] = [s.get(k) for k in ("workers", "mesh", "axes")] if isinstance(s, dict) else [0, 0, 0]
        workers, mesh, axes = found
        fits = isinstance(axes, list) and 0 < len(axes) <= DIMENSIONS
        fits = fits and all(a is None or (type(a) is int and -RANK <= a < RANK) for a in axes)
        fits = fits and (mesh is None or (isinstance(mesh, list) and len(mesh) == len(axes) and _sizes(mesh, 1)))
        if not fits or not (workers is None or (isinstance(workers, list) and workers and _differ(workers))):
            raise ProtocolError(f"invalid configuration of signal {name[:100]!r}: {repr(s)[:200]}")
    return signals


def _sizes(values: list, least: int) -> bool:
    return all(type(v) is int and v >= least for v in values)


def _differ(workers: list) -> bool:
    """Whether these are numbers of different workers: one that stood twice in a collective would wait for itself."""
    return _sizes(workers, 0) and len(set(workers)) == len(workers)


def resolve(signal: dict[str, Any], living: list[int]) -> tuple[Target | None, bool]:
    """The target of a signal, and whether workers that it names are missing."""
    named = signal.get("workers")
    workers = [w for w in (living if named is None else named) if w in living]
    missing = named is not None and len(workers) < len(named)
    placements = tuple(REPLICATE if a is None else Shard(a) for a in signal["axes"])
    sizes = signal.get("mesh")
    if not workers:
        return None, True
    if sizes is None:
        return Target(Mesh((len(workers),), tuple(workers)), placements), missing
    shape = _shrunk(tuple(sizes), len(workers))
    size = 1
    for n in shape:
        size *= n
    return Target(Mesh(shape, tuple(workers[:size])), placements), missing or shape != tuple(sizes)


def _shrunk(shape: Shape, room: int) -> Shape:
    """The mesh shape with its first dimensions reduced to fit `room` workers."""
    kept: list[int] = []
    for n in reversed(shape):
        kept.append(max(1, min(n, room)))
        room //= kept[-1]
    return tuple(reversed(kept))
