"""Lines for the operator of a dispatcher: clients and workers that join and leave, and dropped messages."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from gt.dispatcher.tables import Tables


def shown(text: str) -> str:
    """A peer's text as part of a line: line breaks and terminal control characters are escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Reports:
    """`tell(line)` is called with each line; dropped messages are counted, too."""

    def __init__(self, tables: Tables, tell: Callable[[str], None] | None = None) -> None:
        self.tables, self.tell = tables, tell or (lambda line: None)

    def dropped(self, peer: str, why: str, count: int = 1, cause: Exception | None = None) -> None:
        """Count and report dropped messages, or instructions of one; `cause` is an internal error, shown with its traceback."""
        self.tables.dropped += count
        more = f" (and {count - 1} more)" if count > 1 else ""
        self.tell(f"dropped a message of {shown(self._sender(peer))}: {shown(why)}{more}")
        if cause is not None:
            lines = "".join(traceback.format_exception(cause)).rstrip().split("\n")
            self.tell("\n".join(map(shown, lines)))

    def _sender(self, peer: str) -> str:
        """The sender's label: a client's name is a secret."""
        if peer in self.tables.clients:
            client = self.tables.clients[peer]
            return f"client {client.number} ({client.label})"
        return f"worker {self.tables.by_peer[peer].name}" if peer in self.tables.by_peer else peer
