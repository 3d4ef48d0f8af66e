"""`python -m gt.testing.fuzz [--count N] [--seconds S] [--seed N] [--processes N]`: fuzzes a whole in-process
cluster with hostile messages while another client computes. No process may fail, hang, leak or return a wrong value, and every
read has to be answered."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Any

from gt.dispatcher import plan
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.tables import Entry
from gt.errors import ProtocolError
from gt.ops import TABLE
from gt.spec import Layout, Spec
from gt.testing import hostile_values, hostile_worker
from gt.testing.bystander import Bystander
from gt.testing.cluster import Cluster
from gt.testing.hostile import Hostile, record
from gt.testing.hostile_client import HostileClient
from gt.testing.schedule import Schedule
from gt.transport import checks
from gt.transport import messages as m
from gt.transport.checks import MESSAGE
from gt.worker.client_values import Broken
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.process import bound_memory, room
from gt.worker.programs.compile import dtype_name

MAX_SECONDS = 10.0  # most CPU seconds for one message
STRETCH = 20_000  # messages of one seed to a cluster, and as many again to a dispatcher's core and a worker's core alone
READS = 0.01  # share of messages after which the innocent client computes, and compares its reads
GROWTH = 20_000  # objects that caches may have kept at the end of a stretch
COLLECTED = 10_000  # new objects between two garbage collections
SAID = 500_000  # messages after which a line tells how many were sent
REFUSED = "expected operands ["  # a worker's error for operands of other specs than the kind's


class TooSlow(BaseException):
    """One message took too long. A BaseException, so that error handlers do not take it for a failed kernel."""


class Fuzz:
    """A cluster with an innocent client, and hostile clients one after the other. With `scheduled`, workers serve clients in
    turns as their shells do, hostile clients use collectives most of the time, and clients send and leave while work of others
    is under way."""

    def __init__(
        self, seed: int, workers: int = 2, engine: str = "numpy", sessions: Any = None, scheduled: bool = False
    ) -> None:  # fmt: skip
        self.hostile = Hostile(seed, sessions or record(max(workers, 2)), scheduled)
        self.pool = Cluster(workers, engine)
        self.schedule = Schedule(self.pool, self.hostile.random) if scheduled else None
        self.unexpected: list[str] = []
        self.pool.dispatcher.reports.tell = self._told
        for worker in self.pool.workers:
            worker.tell = self._told
        self.count = self.clients = 0
        self.innocent = Bystander(self.pool, self.hostile.random)
        self.bad = self._next()
        self.tables, self.sizes = list[Any](), list[int]()
        self.modules = self.objects = 0
        self.well()

    def _told(self, line: str) -> None:
        if "Traceback" in line and "NotImplementedError" not in line:
            self.unexpected.append(line)

    def _next(self) -> HostileClient:
        self.clients += 1
        return HostileClient(self.pool, self.hostile, f"bad{self.clients}", self.go_on)

    def go_on(self) -> None:
        """Deliver the messages; by a schedule, a part of them."""
        r = self.hostile.random.random()
        if self.schedule is None:
            self.pool.hub.deliver()
        else:
            self.schedule.some(12)
            if r < 0.1:
                self.innocent.compute()
        if r > 1 - READS:
            self.innocent.read()

    def run(self, count: int, seconds: float = float("inf")) -> int:
        """Send messages up to this number or time. Returns their number."""
        start, first = time.monotonic(), self.count
        with _watched() as restart:
            while self.count - first < count and time.monotonic() - start < seconds:
                restart()
                self.bad.say(self.hostile.message())
                self.count += 1
                if self.bad.let_go or not self.hostile.rest:
                    self.part()
                if self.count % 2000 == 0:
                    self.well()
        self.part()
        self.well()
        return self.count - first

    def part(self) -> None:
        """The hostile client leaves; all its state must be dropped. With a schedule, it leaves at times with work under way."""
        if self.schedule is None or self.hostile.random.random() < 0.5:
            self.pool.hub.deliver()
            self.bad.check()
        for worker in self.pool.workers:
            check_values(worker, self.bad.name)
        hub = self.pool.hub
        self.pool.leave(self.bad.name)
        self.hostile.rest = []
        del hub.parties[self.bad.name]
        hub.frames_seen.clear()
        assert not self.unexpected, self.unexpected[0]
        for worker in self.pool.workers:
            assert worker.parked is None and not worker.backlog, "a worker waits"
            assert not any(worker.collectives.came.values()), "workers are out of step"  # type: ignore[attr-defined]
        self.bad = self._next()

    def well(self) -> None:
        """The innocent client computes right results, and no process holds more than at the start."""
        self.innocent.check()
        self.pool.settle()
        self.pool.dispatcher.tables.check()
        if (compiler := sys.modules.get("gt.worker.engine.torch.inductor")) is not None:
            compiler.join()  # an earlier cluster of this process may still compile, which loads modules and fills caches
        gc.collect()
        sizes = [len(kept._known) for kept in (Spec, Layout, Entry)]
        if not self.tables:
            self.tables, self.sizes = self._tables(), sizes
        if self.modules != len(sys.modules):  # PyTorch loads some when it needs them, of many objects
            self.modules, self.objects = len(sys.modules), _objects()
        assert self._tables() == self.tables, f"{self._tables()} where {self.tables} was"
        assert all(now < then + 20_000 for now, then in zip(sizes, self.sizes)), f"interned: {self.sizes}, then {sizes}"
        if len(gc.get_objects()) - self.objects >= GROWTH:
            assert (grown := _objects() - self.objects) < GROWTH, f"{grown} objects more than at the start"

    def _tables(self) -> list[Any]:
        """Sizes of the state of each process."""
        tables = self.pool.dispatcher.tables
        spaces = [sorted(w.spaces.keys() - {self.bad.name}) for w in self.pool.workers]
        waiting = [len(w.backlog) + len(w.quotas.came) + w.collectives.late.total() for w in self.pool.workers]  # type: ignore[attr-defined]
        cut = len(tables.cut) + len(tables.leaving) + sum(c.held.size for c in tables.clients.values())
        sizes = [len(tables.clients), len(tables.questions), len(tables.by_peer), len(self.pool.hub.parties)]
        return [*sizes, spaces, waiting, cut]


def _objects() -> int:
    """The number of objects of this process, without those of the caches of kinds and plans, which are bounded."""
    checks._known.cache_clear()
    plan._kept.cache_clear()
    gc.collect()
    return len(gc.get_objects())


def check_values(worker: Worker, client: str, sent: bool = True) -> None:
    """Assert that a worker's arrays have their specs, and, for instructions that a dispatcher `sent`, that it refused no
    operands."""
    values = worker.spaces.get(client)
    for id, found in values.table.items() if values is not None else ():
        assert values is not None
        spec = values.specs.get(id)
        if isinstance(found, Broken):
            accepted = f"the dispatcher accepted an instruction that a worker refused: {found.reason[:500]}"
            assert not sent or REFUSED not in found.reason, accepted
        else:
            dtypes = {spec.dtype.name, spec.dtype.name.replace("bfloat16", "float32")} if spec is not None else set()
            kept = spec is not None and tuple(found.shape) == spec.shape and dtype_name(found.dtype) in dtypes
            assert kept, f"tensor {id} of {spec} is {found.dtype}{list(found.shape)}"  # (NumPy keeps bfloat16 as float32)


def runs(seed: int, count: int, sessions: Any, engine: str = "numpy") -> int:
    """Send a worker instructions that no dispatcher would write: its results must have their specs, and every read must be
    answered. Returns their number."""
    hostile, worker = Hostile(seed, sessions), Worker(make(engine))
    worker.handle(m.Mail(DISPATCHER, m.Welcome("w", 0)))
    with _watched() as restart:
        for _ in range(count):
            restart()
            batch = hostile.message()
            if isinstance(batch, m.Batch) and not any(TABLE[k.op].collective for k in batch.kinds if k.op in TABLE):
                gets = tuple(m.Fetch(ticket, id, wire, (0,) * len(wire[1:]), wire[1:]) for ticket, id, wire in batch.gets)
                run = m.Run("bad", batch.serial, batch.kinds, batch.code, gets, batch.ack, 0, batch.traces)
                answers = worker.handle(m.Mail(DISPATCHER, run))
                unread = {get.ticket for get in gets} - {getattr(mail.message, "ticket", None) for mail in answers}
                assert not unread, f"reads {sorted(unread)[:5]} were not answered"
                done = any(isinstance(mail.message, m.Done) for mail in answers)
                assert done or not batch.ack, "the batch was not acknowledged"
            if not hostile.rest:
                check_values(worker, "bad", sent=False)
                worker.handle(m.Mail(DISPATCHER, m.Drop("bad")))
    worker.handle(m.Mail(DISPATCHER, m.Drop("bad")))
    assert not worker.spaces and worker.parked is None
    return count


def peers(seed: int, count: int, sessions: Any, engine: str = "numpy") -> int:
    """Messages of a hostile worker. Returns their number."""
    with _watched() as restart, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may tell clients anything
        return hostile_worker.fuzz(seed, count, restart)


def values(seed: int, count: int, sessions: Any, engine: str = "numpy") -> int:
    """Instructions with hostile values. Returns their number."""
    with _watched() as restart, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's about odd values
        return hostile_values.fuzz(seed, count, restart, engine)


def noise(seed: int, count: int, sessions: Any, engine: str = "numpy") -> int:
    """Send messages with changed bytes to the decoder and the dispatcher's core: each is refused by the decoder, or handled
    like any other. Returns how many could be decoded."""
    hostile, core, read = Hostile(seed, sessions), Dispatcher(), 0
    told: list[str] = []
    core.reports.tell = told.append
    core.handle(m.Mail("w", m.Join(m.VERSION, "", "w", "numpy", "cpu", "here", 1, "ipc://w")))
    with _watched() as restart:
        for _ in range(count):
            restart()
            if "bad" not in core.tables.clients:
                core.handle(m.Mail("bad", m.Hello(m.VERSION, "", "here", 1)))
            data = bytearray(hostile.bytes(hostile.message()))
            for _ in range(hostile.random.randrange(4) if data else 0):
                data[hostile.random.randrange(len(data))] = hostile.random.randrange(256)
            try:
                message = m.decode(bytes(data), MESSAGE)
            except ProtocolError as wrong:
                core.unreadable("bad", wrong)
                continue
            read += 1
            mails = core.handle(m.Mail("bad", message))
            while core.tables.cut:
                mails += core.advance()
            for mail in mails:
                m.decode(m.encode(mail.message))
            if not hostile.rest:
                core.lose("bad", "it left")
    core.tables.check()
    assert not [line for line in told if "Traceback" in line], next(line for line in told if "Traceback" in line)
    return read


@contextmanager
def _watched() -> Iterator[Any]:
    """A function that starts a message's timer; a message that takes too long raises TooSlow."""

    def rang(*_: Any) -> None:
        raise TooSlow(f"one message took more than {MAX_SECONDS:g} s")

    before = signal.signal(signal.SIGPROF, rang)
    try:
        yield lambda: signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


_sessions = cache(record)


def stretch(seed: int, workers: int, engine: str, most: int, seconds: float) -> int:
    """Run the messages of one seed against a whole cluster, a dispatcher's core (with changed bytes), a worker and its kernels.
    Returns their number."""
    workers, scheduled = pool_of(seed, workers)
    sessions, start = _sessions(max(workers, 2)), time.monotonic()
    gc.collect()
    gc.freeze()  # existing objects need not be traversed by every collection
    gc.set_threshold(COLLECTED)
    try:
        done = Fuzz(seed, workers, engine, sessions, scheduled).run(min(STRETCH, most), seconds)
        for part, most_of_it in ((noise, STRETCH // 4), (runs, STRETCH // 4), (peers, STRETCH // 4), (values, STRETCH // 4)):
            if done < most and time.monotonic() - start < seconds:
                more = min(most_of_it, most - done)
                part(seed, more, sessions, engine)
                done += more
    except BaseException as failure:  # any failure is shown with the seed that reproduces it
        failure.add_note(f"seed {seed}: `python -m gt.testing.fuzz --seed {seed} --count {most}` reproduces this")
        raise
    return done


def pool_of(seed: int, workers: int = 0) -> tuple[int, bool]:
    """The number of workers of a seed's cluster, unless it is given, and whether they serve clients in turns."""
    workers = workers or 1 + seed % 3
    return workers, workers > 1 and bool(seed & 1 << 1)


def jobs(args: argparse.Namespace) -> list[tuple[int, int]]:
    """Seeds with their numbers of messages. Without a limit of time the longest come first, so that no process is left with one
    of them when all others have ended."""
    found = [(args.seed + i, min(2 * STRETCH, args.count - n)) for i, n in enumerate(range(0, args.count, 2 * STRETCH))]
    if args.seconds == float("inf"):
        found.sort(key=lambda job: pool_of(job[0], args.workers)[::-1], reverse=True)
    return found


def share_out(args: argparse.Namespace, pool: ProcessPoolExecutor) -> int:
    """Run seeds in several processes, until enough messages were sent or the time is over."""
    end, rest, done = time.monotonic() + args.seconds, deque(jobs(args)), 0
    running: set[Future[int]] = set()
    of: dict[Future[int], int] = {}
    while True:
        while rest and len(running) < args.processes and (left := end - time.monotonic()) > 0:
            seed, most = rest.popleft()
            of[job := pool.submit(stretch, seed, args.workers, args.engine, most, left)] = seed
            running.add(job)
        if not running:
            return done
        children, under_way = multiprocessing.active_children(), [of[job] for job in running]
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        before = done
        try:
            done += sum(each.result() for each in ended)  # raises the error of a seed, or of its process
        except BrokenProcessPool as broken:
            codes = [child.exitcode for child in children]
            broken.add_note(f"a process ended by itself, at one of the seeds {under_way}: exit codes {codes}")
            raise
        if done // SAID > before // SAID:
            print(f"{done} messages so far", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Hostile messages to a whole cluster in one thread.")
    parser.add_argument("--count", type=int, default=10_000_000, help="number of messages (10,000,000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit")
    parser.add_argument(
        "--seed", type=int, default=0, help=f"seed of the first {2 * STRETCH} messages; the next ones have the next seed"
    )
    parser.add_argument("--workers", type=int, default=0, help="workers of each cluster (one, two or three, by the seed)")
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="number of processes (one for each core)")
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes: their tensors are small
    start, spawn = time.monotonic(), multiprocessing.get_context("spawn")
    limit = (room() // args.processes,)  # as of a worker: without it the OS kills a process when memory is used up
    with ProcessPoolExecutor(args.processes, spawn, bound_memory, limit) as pool:
        done = share_out(args, pool)
    each, most = done / (time.monotonic() - start), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(f"{done} messages, nobody harmed: {each:.0f} a second in {args.processes} processes of at most {most} MB, "
          f"seeds from {args.seed} on")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
