"""`torch.accelerator` for scripts: there is no device to choose, as the dispatcher places tensors."""

from __future__ import annotations

from typing import Any

from gt import missing_names


def is_available() -> bool:
    """False: a script moves no tensors between devices."""
    return False


def device_count() -> int:
    return 0


def current_accelerator(check_available: bool = False) -> None:
    """None, as on a machine without one; `device = ... or "cpu"` then gives a valid name, as any is."""


def synchronize(device: Any = None) -> None:
    """Nothing to wait for: reading a value waits for it."""


__all__ = ["current_accelerator", "device_count", "is_available", "synchronize"]

__getattr__ = missing_names.of(__name__)
