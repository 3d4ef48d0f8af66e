"""A client's programs on a worker as text: each as received, and after every pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.worker.programs.compile import Executable
from gt.worker.programs.sharded import ShardedTrace

MAX_CHARACTERS = 4 << 20  # most characters in all


def listed(known: Iterable[Any]) -> dict[str, Any]:
    """The texts of the last programs, and the number of programs left out."""
    programs: list[dict[str, Any]] = []
    left_out = length = 0
    for ready in reversed(list(known)):
        if not isinstance(ready, (Executable, ShardedTrace)):
            continue
        if length < MAX_CHARACTERS:
            stages = {name: str(program) for name, program in ready.stages.items()}
            length += sum(map(len, stages.values()))
            programs.append({"number": ready.number, "source": ready.source, "calls": ready.calls, "stages": stages})
        else:
            left_out += 1
    return {"programs": programs[::-1], "left_out": left_out}
