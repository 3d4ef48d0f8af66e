"""The cost of turns for a client that is alone: GT's worker and one that executes messages as they come, and knows no turns,
queues or shares. `python share_alone.py ARGUMENTS OF gt.worker` is that worker."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from measure import Result, interval, rates, times
from share import Client, clients, server, worker

from gt.transport.messages import Mail
from gt.worker import __main__ as command
from gt.worker import process, serve
from gt.worker.client_values import ClientValues
from gt.worker.core import Worker
from gt.worker.deferred_runs import DeferredRuns, Found
from gt.worker.peer_names import DISPATCHER
from gt.worker.serve import Shell
from gt.worker.turns import Turn

PAIRS, BURST = 100, 0.1  # pairs of bursts, and the seconds of one


class NoQueue:
    """In place of a worker's turns: messages are executed as they come."""

    def __init__(self, core: Worker, send: Callable[[list[Mail]], None]) -> None:
        self.core, self.send, self.deferred = core, send, DeferredRuns(core.spaces)
        self.queue, self.instructions = self, 0
        self.turn = Turn(time.perf_counter, lambda: False)  # of a client that is alone

    def put(self, client: str, message: Any) -> None:
        self.send(self.core.handle(Mail(DISPATCHER, message)))

    def put_all(self, found: Found) -> None:
        runs, answers = found
        for run in runs:
            self.put(run.client, run)
        self.send(answers)

    serve_started = put_all

    def next(self) -> None: ...
    def device_pending(self) -> bool:
        return False

    def waiting(self) -> bool:
        return False

    def forget(self, client: str) -> None: ...
    def on_other_thread(self, work: Callable[[], None]) -> None:
        work()

    def introduce(self, came: Any) -> None: ...
    def stats(self) -> dict[str, Any]:
        return {}


class FirstCome(Shell):
    """A worker that executes each message when it comes, to its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.turns = self.arrivals.turns = NoQueue(self.core, self._send)  # type: ignore[assignment]
        self.arrivals.take_in = lambda: False  # type: ignore[method-assign] # inside a kernel: its message would be executed there
        self.core.executor.turn = None
        self.core.answers.seconds = lambda client: self.busy.so_far()[
            0
        ]  # by which the client bounds its instructions in flight

    def _make_core(self, *args: Any) -> None:
        super()._make_core(*args)
        core: Worker = self.core
        core._values = lambda client: (
            core.spaces.get(client)
            or core.spaces.setdefault(  # type: ignore[method-assign]
                client, ClientValues(client)
            )
        )

    def _control(self, now: float) -> None:
        while (frame := self.dispatcher.receive()) is not None:
            self.arrivals.sort(self._read(frame))
            while self.arrivals.others:
                self._take(self.arrivals.others.popleft())


def alone() -> Iterator[Result]:
    """A trainer on either worker, in short bursts by turns. Of each pair of bursts, the ratio of steps a second: the median and
    the ends of its 95% interval, by resampling; and the worker's CPU time for a step, over all bursts."""
    with server() as port, server() as plain:
        workers = worker(port), worker(plain, __file__)
        trainers = [Client("gt", "train", each, wait=False) for each in (port, plain)]
        with clients(*trainers):
            before = [_cpu(each) for each in workers]
            pairs = [_pair(trainers) for _ in range(PAIRS)]
            used = [_cpu(each) - cpu for each, cpu in zip(workers, before)]
    theirs = statistics.median(other for _, other in pairs)
    low, ratio, high = interval([own / other for own, other in pairs])
    for name, value in (("", ratio), ("-low", low), ("-high", high)):
        yield rates(f"share-alone{name}", value * theirs, theirs, "steps/s")
    steps = [sum(rate) * BURST for rate in zip(*pairs)]
    yield times("share-alone-cpu", used[0] / steps[0] * 1e6, used[1] / steps[1] * 1e6, "us CPU a step")


def _pair(trainers: list[Client]) -> tuple[float, float]:
    """The rates of both in bursts right after one another, in either order."""
    order = random.sample((0, 1), 2)
    found = {n: trainers[n].work(BURST)[0] for n in order}
    return found[0], found[1]


def _cpu(worker: Any) -> float:
    return float(sum(psutil.Process(worker.pid).cpu_times()[:2]))


CASES = {"share-alone": alone}

if __name__ == "__main__":
    serve.begin_second_thread = lambda turns, fd: None
    process.Shell = FirstCome  # type: ignore[misc]
    sys.exit(command.main())
