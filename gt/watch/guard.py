"""Observers look on: whatever happens to one, such as a full disk, ends its log and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.watch.log import InstructionLog


class Guarded:
    """The instruction log that `path` names, or a stream, until it cannot be written; that is told once."""

    def __init__(self, log: InstructionLog, name: str, tell: Callable[[str], None]) -> None:
        self.log: InstructionLog | None = log
        self.name, self.tell = name, tell

    def __call__(self, event: str, who: str, what: Any) -> None:
        if self.log is None:
            return
        try:
            self.log(event, who, what)
        except Exception as failed:  # no observer ends the process that it observes, for whatever reason it fails
            log, self.log = self.log, None
            self.tell(f"the instruction log {self.name} ends here: {failed}")
            log.close()
