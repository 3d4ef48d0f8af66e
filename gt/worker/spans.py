"""When a worker did what for a client that asked to have it recorded. What nobody asked for costs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gt.ops import Kind
from gt.worker.programs.compile import COLLECTIVE, FREED

MOST = 1 << 20  # spans that may be kept


class SpanRecorder:
    """The last `keep` units of work: when each began and ended, and what it was. A collective lasts until its result is
    there, which is when this worker may go on."""

    def __init__(self, keep: int, clock: Callable[[], float], sync: Callable[[], None]) -> None:
        self.clock, self.sync = clock, sync
        self.spans: deque[tuple[float, float, tuple]] = deque(maxlen=keep)

    def watch(self, kinds: dict[int, tuple], code: Iterable[tuple]) -> Iterator[tuple]:
        """The same instructions, timed between being handed out and the next being asked for. A device that runs behind is
        waited for, so that the times are those of the work and not of its launch."""
        clock, sync, add = self.clock, self.sync, self.spans.append
        for ins in code:
            known = kinds.get(ins[0])
            if known is None or known[0] == FREED:
                yield ins
                continue
            began = clock()
            yield ins
            sync()
            add((began, clock(), known))

    def told(self) -> list[tuple[float, float, str, str, bool]]:
        """As they are sent: from, to, name, signal, and whether it was something workers do together."""
        return [(began, ended, *_about(ready), form == COLLECTIVE) for began, ended, (form, _, ready) in self.spans]


def _about(ready: Any) -> tuple[str, str]:
    kind = ready.kind
    if isinstance(kind, Kind):
        return kind.row.name, kind.signal
    signals = dict.fromkeys(r.kind.signal for r in ready.kinds.values() if r.kind.signal)
    return kind, ", ".join(signals)
