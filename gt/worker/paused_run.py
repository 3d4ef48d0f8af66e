"""A run in progress that does not go on at present."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from gt.transport.messages import Run
from gt.worker.cancel import Parked
from gt.worker.client_values import ClientValues, Code
from gt.worker.turns import Preempted

Stop = TypeVar("Stop", Parked, Preempted)


@dataclass(slots=True)
class PausedRun(Generic[Stop]):
    """It waits for other workers (Parked) or for its client's next turn (Preempted)."""

    stopped: Stop
    values: ClientValues
    run: Run
    rest: Code
