"""What scripts ask of `torch.cuda`. A script chooses no device here: workers have GPUs or not, and the dispatcher chooses."""

from __future__ import annotations

from typing import Any

from gt.client.functions import creation


def is_available() -> bool:
    """False: there is no device for a script to move tensors to."""
    return False


def device_count() -> int:
    return 0


def manual_seed(seed: int) -> None:
    """`gt.manual_seed`: the same numbers come on every device."""
    creation.manual_seed(seed)


manual_seed_all = manual_seed


def synchronize(device: Any = None) -> None:
    """Nothing to wait for: reading a value waits for it."""


def empty_cache() -> None:
    """Nothing to do: memory is the workers'."""


def is_bf16_supported() -> bool:
    return True
