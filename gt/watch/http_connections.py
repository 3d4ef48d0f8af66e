"""Limits on connections to the dashboard: a connection without a complete request in time is closed, and past the maximum
count the longest idle one is. A peer without a key thus cannot hold the dashboard's descriptors or memory for long."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_TIMEOUT = 10.0  # seconds for a complete request to arrive
MAX_CONNECTIONS = 256  # most connections


class HttpConnection(H11Protocol):
    """uvicorn's connection with a timeout for the first request too; uvicorn has one only between requests."""

    overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_request()
        there = [c for c in self.connections if isinstance(c, HttpConnection) and not c.transport.is_closing()]
        if len(there) > MAX_CONNECTIONS:
            min((c for c in there if c.idle), key=HttpConnection.deadline, default=self).transport.close()

    @property
    def idle(self) -> bool:
        """Whether the connection has no request in progress."""
        return self.cycle is None or self.cycle.response_complete

    def deadline(self) -> float:
        """The time at which the connection is closed unless a request arrives."""
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
        self.overdue = self.loop.call_later(REQUEST_TIMEOUT, self._close)

    def _close(self) -> None:
        if self.idle:
            self.transport.close()
