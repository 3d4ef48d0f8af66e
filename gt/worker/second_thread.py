"""A second thread for short runs while the worker's own thread is inside a long kernel on a CPU: such a kernel cannot be
preempted, and other clients would wait for its end. Interactive clients are served during shorter kernels, too. A lock is
held by the thread that uses the worker's state and its sockets: the worker's own thread, except inside of these kernels."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from gt.worker.client_turns import ClientTurns


class SecondThread:
    """`serve()` executes the short runs that have arrived, `prepare(work)` calls `work` with the settings of a thread that
    executes kernels, `wanted()` returns whether other clients are connected, `asked()` whether interactive ones are. It starts
    at the first long kernel while others are connected, and waits for messages at the descriptors `fds` inside of long kernels
    alone."""

    def __init__(
        self, fds: Sequence[int], serve: Callable[[], None], prepare: Callable[[Callable[[], None]], None],
        wanted: Callable[[], bool], asked: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.fds, self.serve, self.prepare, self.wanted, self.asked = fds, serve, prepare, wanted, asked
        self.state = threading.Lock()
        self.state.acquire()
        self.inside = False  # whether the worker's own thread is inside a long kernel
        self.for_all = False  # whether this kernel is long enough for short runs of all clients
        self.serving = False
        self.asleep = False  # whether the second thread waits for the next long kernel
        self.kernels: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: a long kernel begins
        self.thread: threading.Thread | None = None
        self.failed: BaseException | None = None  # the error that ended the second thread

    def run(self, kernel: Callable[..., Any], *operands: Any) -> Any:
        """Call a long kernel; the second thread has the worker's state until it returns."""
        if self.serving or not self.wanted():
            return kernel(*operands)
        self.for_all = True
        return self._run(kernel, operands)

    def run_shorter(self, kernel: Callable[..., Any], *operands: Any) -> Any:
        """The same for a kernel of a tenth of a millisecond, during which interactive clients alone are served."""
        if self.serving or not self.asked():
            return kernel(*operands)
        self.for_all = False
        return self._run(kernel, operands)

    def _run(self, kernel: Callable[..., Any], operands: Sequence[Any]) -> Any:
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

    def call(self, work: Callable[[], None]) -> None:
        """Have the second thread call `work`, which needs none of the worker's state, when it next waits for a long kernel."""
        if self.thread is not None:
            self.kernels.put(work)

    def _wait(self) -> None:
        """Serve messages that arrive during long kernels. Other messages are left to the worker's own thread."""
        arrived = select.poll()
        for fd in self.fds:
            arrived.register(fd, select.POLLIN)
        while self.failed is None:
            arrived.poll()
            if not self._serve():
                self.asleep = True
                while not self.inside and (work := self.kernels.get()) is not None:
                    work()
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
        """Raise the error that ended the second thread."""
        if self.failed is not None:
            raise self.failed


def begin_second_thread(turns: ClientTurns, fds: Sequence[int]) -> None:
    """Have short runs executed during long kernels of a CPU, when there are messages at these descriptors."""
    if (threads := turns.core.engine.threads) is not None:
        known = [fd for fd in fds if fd >= 0]
        second = SecondThread(known, turns.serve_short, threads.on_second_thread, turns.several, turns.asked)
        threads.second = turns.second = second
