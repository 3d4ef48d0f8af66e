"""A second thread for short runs while the worker's own thread is inside a long kernel on a CPU: such a kernel cannot be
preempted, and other clients would wait for its end. A lock is held by the thread that uses the worker's state and its
sockets: the worker's own thread, except inside of these kernels."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from math import inf
from queue import SimpleQueue
from typing import Any

from gt.transport.messages import Run
from gt.worker.client_values import ClientValues
from gt.worker.programs.compile import COLLECTIVE, FREED, TRACE
from gt.worker.turns import LIGHT

SHORT = 5e-4  # estimated seconds on one core of all programs of a short run


class SecondThread:
    """`serve()` executes the short runs that have arrived, `prepare(work)` calls `work` with the settings of a thread that
    executes kernels, `wanted()` returns whether other clients are connected. It starts at the first long kernel beside other
    clients, and waits for messages at the descriptor `fd` inside of long kernels alone: a client that is alone never has it."""

    def __init__(
        self, fd: int, serve: Callable[[], None], prepare: Callable[[Callable[[], None]], None], wanted: Callable[[], bool]
    ) -> None:  # fmt: skip
        self.fd, self.serve, self.prepare, self.wanted = fd, serve, prepare, wanted
        self.state = threading.Lock()
        self.state.acquire()
        self.inside = False  # whether the worker's own thread is inside a long kernel
        self.serving = False
        self.asleep = False  # whether the second thread waits for the next long kernel
        self.kernels: SimpleQueue[None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.failed: BaseException | None = None  # what ended the second thread

    def run(self, kernel: Callable[..., Any], *operands: Any) -> Any:
        """Call a long kernel; the second thread has the worker's state until it returns."""
        if self.serving or not self.wanted():
            return kernel(*operands)
        if self.thread is None:
            self.thread = threading.Thread(target=self.prepare, args=(self._wait,), name="gt-short-runs", daemon=True)
            self.thread.start()
        self.inside = True
        self.state.release()
        if self.asleep:
            self.asleep = False
            self.kernels.put(None)
        try:
            return kernel(*operands)
        finally:
            self.inside = False
            self.state.acquire()

    def _wait(self) -> None:
        """Serve what arrives during long kernels. What arrives otherwise is left to the worker's own thread."""
        arrived = select.poll()
        arrived.register(self.fd, select.POLLIN)
        while self.failed is None:
            arrived.poll()
            if not self._serve():
                self.asleep = True
                if not self.inside:
                    self.kernels.get()
                self.asleep = False

    def _serve(self) -> bool:
        """Returns whether the worker's own thread is inside a long kernel."""
        if not self.state.acquire(blocking=False):
            return False
        try:
            if self.inside:
                self.serving = True
                self.serve()
            return self.inside
        except BaseException as error:  # its own thread ends with it: see `check`
            self.failed = error
            return False
        finally:
            self.serving = False
            self.state.release()

    def is_current(self) -> bool:
        """Whether the second thread calls this, with the worker's state."""
        return self.serving and self.thread is threading.current_thread()

    def check(self) -> None:
        """Raise what ended the second thread."""
        if self.failed is not None:
            raise self.failed


def is_short(values: ClientValues, run: Run) -> bool:
    """Whether a run is certain to take a moment: its kinds are defined, and neither large nor collectives."""
    if run.kinds or run.traces or values.guarded or values.has_sharded or len(run.code) > LIGHT:
        return False
    code: Sequence[tuple[Any, ...]] = run.code
    seconds = 0.0
    for ins in code:
        form, _, ready = values.kinds.get(ins[0], (COLLECTIVE, None, None))  # one that is not defined is refused in its turn
        if form == TRACE:
            seconds += inf if ready.compile else ready.seconds
        elif form == COLLECTIVE or form != FREED and ready.large:
            return False
    return seconds <= SHORT
