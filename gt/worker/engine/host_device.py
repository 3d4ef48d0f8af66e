"""The part of an engine that is the same for all whose tensors are in host memory: no device to wait for or to fill."""

from __future__ import annotations


class HostDevice:
    def sync(self) -> None:
        pass

    def poisoned(self, error: Exception) -> bool:
        return False

    def capacity(self) -> int:
        return 0

    def devices(self) -> int:
        return 1

    def recordings(self) -> dict[int, int]:
        return {}

    def allocated(self) -> None:
        return None
