"""What the operator of a dispatcher is told: who comes and goes, and which messages were dropped."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from gt.dispatcher.tables import Tables


class Reports:
    """`tell(line)` is called with each line; dropped messages are counted, too."""

    def __init__(self, tables: Tables, tell: Callable[[str], None] | None = None) -> None:
        self.tables, self.tell = tables, tell or (lambda line: None)

    def dropped(self, peer: str, why: str, count: int = 1, cause: Exception | None = None) -> None:
        """Messages, or instructions of one, that were not carried out; `cause` is a fault of ours, shown with its traceback."""
        self.tables.dropped += count
        more = f" (and {count - 1} more)" if count > 1 else ""
        self.tell(f"dropped a message of {peer}: {why}{more}")
        if cause is not None:
            self.tell("".join(traceback.format_exception(cause)).rstrip())
