"""Connections to the dashboard: one that sends no whole request in time is cut off, and past a number the one that has been
silent for longest is. So whoever has no key holds neither descriptors nor memory of the dashboard for long."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 10.0  # seconds for a request to come
MOST = 256  # connections


class HttpConnection(H11Protocol):
    """A connection of uvicorn's, which waits for a request for any time unless one was answered before."""

    overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()
        there = [c for c in self.connections if isinstance(c, HttpConnection) and not c.transport.is_closing()]
        if len(there) > MOST:
            min((c for c in there if c.silent), key=HttpConnection.until, default=self).transport.close()

    @property
    def silent(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def until(self) -> float:
        """When it is cut off."""
        return self.overdue.when() if self.overdue is not None else 0.0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.overdue is not None:
            self.overdue.cancel()

    def _expect_request(self) -> None:
        if self.overdue is not None:
            self.overdue.cancel()
        self.overdue = self.loop.call_later(PATIENCE, self._cut)

    def _cut(self) -> None:
        if self.silent:
            self.transport.close()
