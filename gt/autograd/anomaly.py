"""Finding the op whose gradient went wrong: every gradient is read, and the first nan names the line of its forward."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Node, Tensor
from gt.client.backward import ANOMALY
from gt.client.grad_mode import no_grad
from gt.client.user_lines import RING, line_of


def forward_line(node: Node) -> str:
    """Where the op was written, as long as the session remembers."""
    session = node.scope.session
    if session.next_id() - node.order >= RING:
        return f"  (more than {RING} results ago: the line is no longer known)"
    found = session.asked_for(node.order)
    return "  " + line_of(found) if found else "  (the line is not known)"


def _check(node: Node, gradients: list[Tensor | None]) -> None:
    for i, g in enumerate(gradients):
        if g is None or node.edges[i] is None:
            continue
        with no_grad():
            values: Any = g if isinstance(g, Tensor) else g.parts[1]
            wrong = bool((values != values).sum().item())
        if wrong:
            raise RuntimeError(
                f"the gradient of {node.name} for its input {i} has nan values. Its forward was\n{forward_line(node)}"
            )


class set_detect_anomaly:
    """Turn the looking on or off, for good or, as a context, for a while. It reads every gradient, so it is slow."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = ANOMALY.check
        ANOMALY.check = _check if mode and check_nan else None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: Any) -> None:
        ANOMALY.check = self.before


def is_anomaly_enabled() -> bool:
    """Whether gradients are looked at for nan."""
    return ANOMALY.check is not None


class detect_anomaly(set_detect_anomaly):
    """`with gt.autograd.detect_anomaly():` a nan in a backward raises and names the line of its forward."""

    def __init__(self, check_nan: bool = True) -> None:
        self.mode = check_nan

    def __enter__(self) -> None:
        super().__init__(self.mode)
