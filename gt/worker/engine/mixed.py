"""The kernel of a kind on an engine with some kernels of its own: its own, a decomposition, or the base engine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops import Kind
from gt.ops.lower import lowered
from gt.worker.engine import BRIDGED, DECOMPOSED, OWN

Kernel = Callable[..., Any]


def resolve(
    kind: Kind, own: Callable[[Kind], Kernel | None], bridge: Callable[[Kind], Kernel], views: bool
) -> tuple[str, Kernel]:
    """The way and the kernel. A decomposition is used only if the backend runs all of it, so that no array is converted back
    and forth; with `views`, views by the base engine are free and allowed in it."""
    if found := own(kind):
        return OWN, found
    steps = lowered(kind)
    if steps is not None:
        kernels = [own(s.kind) or (bridge(s.kind) if views and s.kind.row.view else None) for s in steps.body]
        if all(kernels):
            return DECOMPOSED, steps.bind([k for k in kernels if k])
    return BRIDGED, bridge(kind)
