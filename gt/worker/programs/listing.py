"""The programs that a worker has for a client, as text: each as it came, and as every pass gave it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.worker.programs.compile import Executable
from gt.worker.programs.sharded import ShardedTrace

MOST = 4 << 20  # characters in all


def listed(known: Iterable[Any]) -> dict[str, Any]:
    """The last programs of these, and how many there was no room for."""
    programs: list[dict[str, Any]] = []
    left_out = length = 0
    for ready in reversed(list(known)):
        if not isinstance(ready, (Executable, ShardedTrace)):
            continue
        if length < MOST:
            stages = {name: str(program) for name, program in ready.stages.items()}
            length += sum(map(len, stages.values()))
            programs.append({"number": ready.number, "source": ready.source, "calls": ready.calls, "stages": stages})
        else:
            left_out += 1
    return {"programs": programs[::-1], "left_out": left_out}
