"""Which kernel a kind runs on an engine that has some of its own: that, its decomposition, or another engine's."""

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
    """The way and the kernel. A decomposition is taken only if the backend itself runs all of it, so that no array goes back
    and forth; with `views`, the bridge's views are free and count as such."""
    if found := own(kind):
        return OWN, found
    steps = lowered(kind)
    if steps is not None:
        kernels = [own(s.kind) or (bridge(s.kind) if views and s.kind.row.view else None) for s in steps.body]
        if all(kernels):
            return DECOMPOSED, steps.bind([k for k in kernels if k])
    return BRIDGED, bridge(kind)
