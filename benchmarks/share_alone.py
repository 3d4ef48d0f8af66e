"""The cost of turns for a client that is alone: GT's worker and one that executes messages as they come, and knows no turns,
queues or shares. `python share_alone.py ARGUMENTS OF gt.worker` is that worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import psutil
from measure import Result, rates, times
from share import Client, clients, server, worker

from gt.worker import __main__ as command
from gt.worker import process
from gt.worker.client_values import ClientValues
from gt.worker.core import Worker
from gt.worker.serve import Shell

ROUNDS, SECONDS = 6, 1.2
Measured = tuple[float, float]


class NoQueue:
    """Stands where a worker has its turns."""

    def __init__(self) -> None:
        self.queue, self.instructions = self, 0

    def next(self) -> None: ...
    def device_pending(self) -> bool:
        return False

    def waiting(self) -> bool:
        return False

    def forget(self, client: str) -> None: ...
    def introduce(self, came: Any) -> None: ...
    def stats(self) -> dict[str, Any]:
        return {}


class FirstCome(Shell):
    """A worker that executes each message when it comes, to its end."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.turns, self.core.executor.turn = NoQueue(), None  # type: ignore[assignment]
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
            self._take(self._read(frame))

    def _take_in(self) -> bool:
        return False


def alone() -> Iterator[Result]:
    """A trainer on either worker, in turns: steps a second, and the worker's CPU time for a step, best of several."""
    with server() as port, server() as plain:
        processes = worker(port), worker(plain, __file__)
        trainers = [Client("gt", "train", each, wait=False) for each in (port, plain)]
        with clients(*trainers):
            found = _measured(processes, trainers)
    mine, theirs = found
    yield rates("share-alone", max(r for r, _ in mine), max(r for r, _ in theirs), "steps/s")
    yield times("share-alone-cpu", min(c for _, c in mine) * 1e6, min(c for _, c in theirs) * 1e6, "us CPU a step")


def _measured(workers: tuple[Any, Any], trainers: list[Client]) -> tuple[list[Measured], list[Measured]]:
    """Of either worker, the rate and the worker's CPU seconds for a step, in each round."""
    found: tuple[list[Measured], list[Measured]] = ([], [])
    for _ in range(ROUNDS):
        for each, trainer, measured in zip(workers, trainers, found):
            before = _cpu(each)
            (rate,) = trainer.work(SECONDS)
            measured.append((rate, (_cpu(each) - before) / (rate * SECONDS)))
    return found


def _cpu(worker: Any) -> float:
    return float(sum(psutil.Process(worker.pid).cpu_times()[:2]))


CASES = {"share-alone": alone}

if __name__ == "__main__":
    process.Shell = FirstCome  # type: ignore[misc]
    sys.exit(command.main())
