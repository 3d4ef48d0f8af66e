"""The cost of a step, as people write it, for the client's thread alone: the others are a link that does nothing. In place of a
rival stands its bound on a fast host."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from loop_lm import LM
from measure import Result, best, times

import gt
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.spec import DTYPES
from gt.transport.messages import Ack, Batch, Mail, Value, encode


class NoWorkers:
    """A link whose other end does nothing: batches are encoded and forgotten, reads are zeros at once."""

    shares = True
    can_start = False

    def __init__(self) -> None:
        self.session: Any = None
        self.bytes = 0

    def clock(self) -> float:
        return time.time()

    def send(self, message: Any) -> None:
        self.bytes += len(encode(message))
        if isinstance(message, Batch):
            self.answer(message)

    def answer(self, batch: Batch) -> None:
        if batch.ack:
            self.session.handle(Mail("", Ack(batch.serial)))
        for ticket, _, spec in batch.gets:
            zeros = bytes(int(np.prod(spec[1:], initial=1)) * DTYPES[spec[0]].size)
            self.session.handle(Mail("", Value(ticket, spec, (), (), 1, None, zeros)))

    def wait(self, reply: Any, timeout: float | None) -> None:
        assert reply.done

    def put(self, data: np.ndarray) -> tuple[int, int, int]:
        return (1, 0, data.nbytes)

    def wake(self) -> None: ...
    def let_sleep(self) -> None: ...
    def send_to(self, worker: int, message: Any, frames: tuple = ()) -> None: ...
    def start_run(self, message: Any) -> bool:
        return False

    def close(self) -> None: ...
    def executed(self, serial: int) -> None: ...
    def outstanding(self) -> int:
        return 0

    def sealed(self, serial: int) -> bool:
        return True

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        raise RuntimeError("nobody lends memory here")


class Paced(NoWorkers):
    """A link to a device that computes nothing and takes as long for each op, one batch after another. Time is this thread's
    plus its waits for reads, so that other work on the machine does not count."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds  # for an op
        self.sizes: dict[int, int] = {}  # of programs
        self.waited = self.done = 0.0

    def clock(self) -> float:
        return time.thread_time() + self.waited

    def answer(self, batch: Batch) -> None:
        for definition in batch.traces:
            self.sizes[definition.number] = sum(ins[0] > 0 for ins in definition.body)
        ops = sum(self.sizes.get(ins[0], 1) for ins in batch.code if ins[0] > 0)
        self.done = max(self.done, self.clock()) + ops * self.seconds
        if batch.gets:
            self.waited += max(0.0, self.done - self.clock())
        super().answer(batch)


class Alone:
    """A session with nobody at the other end, or a device that takes its time, for the time of a `with`."""

    def __init__(self, link: NoWorkers | None = None) -> None:
        self.link = link or NoWorkers()

    def __enter__(self) -> Session:
        link = self.link
        self.session = link.session = Session(link, "alone")
        self.session.workers = (SimpleNamespace(device="cpu", small=False),)
        self.before, HERE.scope = HERE.scope, Scope(self.session)
        return self.session

    def __exit__(self, *exc: object) -> None:
        HERE.scope = self.before
        self.session.close()


def _seconds(work: Callable[[], Any], steps: int) -> float:
    """Seconds of this thread for one step."""
    gc.collect()
    start = time.thread_time()
    for _ in range(steps):
        work()
    return (time.thread_time() - start) / steps


class Step:
    """A transformer's step, whose loss is read every `read` steps."""

    def __init__(self, read: int, **sizes: Any) -> None:
        self.lm = LM(gt, **sizes)
        self.batch = self.lm.data()
        self.read, self.count = read, 0

    def __call__(self) -> None:
        loss = self.lm.step(*self.batch)
        self.count += 1
        if self.count % self.read == 0:
            loss.item()


def measured(case: str, goal: float, rounds: int, steps: int, **sizes: Any) -> Iterator[Result]:
    """Client time: milliseconds of a step, microseconds of an instruction that computes. The goal is microseconds each."""
    with Alone() as session:
        step = Step(10, **sizes)
        for _ in range(24):
            step()
        ops = _ops_of(session, step)
        hits = session.tracer.hits
        mine = min(_seconds(step, steps) for _ in range(rounds))
        hits = session.tracer.hits - hits
        assert hits >= steps, f"{hits} calls of traces in {steps} steps: the step is not replayed, {session.tracer.misses}"
    yield times(f"{case}-step", mine * 1e3, goal * ops * 1e-3, f"ms, {ops} ops")
    yield times(f"{case}-op", mine / ops * 1e6, goal, "us/op")


def _ops_of(session: Session, step: Step) -> int:
    """Ops of one step, those on each item of lists counted, frees and marks not."""
    session.flush()
    taken: list[tuple] = []
    fold = session.tracer.fold

    def noting(batch: list[tuple], final: bool, mark: bool) -> list[tuple]:
        taken.extend(batch)
        return fold(batch, final, mark)

    session.tracer.fold = noting  # type: ignore[method-assign]
    try:
        step()
        session.flush()
    finally:
        session.tracer.fold = fold  # type: ignore[method-assign]
    return session.tracer.size([ins[0] for ins in taken if ins[0] > 0])


def issue_real() -> Iterator[Result]:
    """A transformer block with its embedding and head, forward, backward, clipped, updated by AdamW, with a schedule."""
    yield from measured("issue_real", 3.0, 7, 50, layers=1, width=384, tokens=16, batch=2)


def issue_lm() -> Iterator[Result]:
    """The language model of `loops`: 6 layers, 384 wide, 256 tokens, batch 8."""
    yield from measured("issue_lm", 4.0, 5, 20)


def early() -> Iterator[Result]:
    """The language model with its loss read in every step, against the same read every 10 steps, on a device that takes 8 us an
    op and computes nothing; with calls sent early (`early`) and without (`early-off`)."""
    for case, on in (("early", True), ("early-off", False)):
        link = Paced(8e-6)
        with Alone(link) as session:
            assert session.tracer is not None
            session.tracer.early.on = on
            lm = LM(gt)
            batch = lm.data()

            def steps(read: int, n: int = 20, lm: LM = lm, batch: Any = batch, link: Paced = link) -> float:
                gc.collect()
                start = link.clock()
                for i in range(1, n + 1):
                    loss = lm.step(*batch)
                    if i % read == 0:
                        loss.item()
                return (link.clock() - start) / n * 1e3

            steps(1), steps(1)
            every, tenth = best(lambda steps=steps: steps(1), lambda steps=steps: steps(10), 6)
            counts = session.tracer.early.counts
            assert not on or counts["right"] > 20, counts
        yield times(case, every, tenth, "ms/step")


CASES = {"early": early, "issue_real": issue_real, "issue_lm": issue_lm}
