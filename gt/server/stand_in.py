"""A thread that serves the dispatcher while its worker's own thread is inside of something long: a kernel, a wait for a device,
a compilation, or the start of the engine. It looks every few milliseconds while the worker works, and sleeps while it rests."""

from __future__ import annotations

import select
import threading
import time
from typing import Protocol

from gt.transport.wake import WakeTimer

TICK = 0.004  # seconds after which the worker's own thread counts as busy; a client's turn has 2 or 8 ms


class Served(Protocol):
    """The dispatcher and its worker, as this thread knows them."""

    fd: int
    served: int
    resting: bool
    something_left: bool

    def longest_wait(self) -> float: ...
    def serve_for_worker(self, served: int) -> None: ...


class StandIn:
    def __init__(self, inner: Served) -> None:
        self.inner = inner
        self.turns = 0  # times that it has served the dispatcher
        self.closed = False
        self.failed: BaseException | None = None  # the error that ended the thread
        self.timer = WakeTimer(TICK)
        self.watching = True  # whether the timer is set
        self.timer.set()
        threading.Thread(target=self._run, name="gt-stand-in", daemon=True).start()

    def watch(self) -> None:
        """The worker begins to work."""
        self.watching = True
        self.timer.set()

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self.failed is not None:
            raise self.failed

    def close(self) -> None:
        self.closed = True

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # raised by `check` on the worker's own thread, which ends with it
            self.failed = error

    def _watch(self) -> None:
        inner, before = self.inner, 0
        ticks, arrived = select.poll(), select.poll()
        ticks.register(self.timer.fd, select.POLLIN)
        arrived.register(inner.fd, select.POLLIN)
        while not self.closed:
            ticks.poll()
            self.timer.clear()
            if inner.served == before:
                self._serve(arrived, before)
            before = inner.served
            if inner.resting:
                self.watching = False
                if inner.resting:  # else it may have seen that the timer was set
                    continue
            self.watch()

    def _serve(self, arrived: select.poll, served: int) -> None:
        """Serve until the worker's own thread does."""
        inner = self.inner
        while inner.served == served and not inner.resting and not self.closed:
            if inner.something_left:  # the descriptor stays ready until the worker has seen it
                time.sleep(TICK)
            else:
                arrived.poll(inner.longest_wait())
            if inner.served == served and not inner.resting and not self.closed:
                self.turns += 1
                inner.serve_for_worker(served)
