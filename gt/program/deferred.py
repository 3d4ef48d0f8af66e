"""Which messages of a client may follow a deferred batch that was not started. Client and worker decide it by the same rule, so
that both know whether the batch can still be started."""

from __future__ import annotations

from typing import Any

from gt.program.code import freed, is_free
from gt.program.stretch import flat


def named(message: Any) -> frozenset[Any]:
    """The ids in the instructions of a deferred Batch or Run, among other numbers."""
    return frozenset(flat(message.code))


def stays_behind(message: Any, names: frozenset[Any]) -> bool:
    """Whether a Batch or Run waits for the end of a deferred one with these `named` ids. Any other message cancels it."""
    if message.gets or message.kinds or message.traces or message.forget or message.drops or message.deferred is not None:
        return False
    return all(map(is_free, message.code)) and names.isdisjoint(freed(message.code))
