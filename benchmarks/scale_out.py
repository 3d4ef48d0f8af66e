"""Where one dispatcher ends: its core with a thousand clients and thousands of workers that are only simulated, and real
processes that join, compute together and leave. The rival of each figure is the same with one client and one worker, or with
few workers, so a ratio is the cost of size."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
from measure import Result, rates, times, took

import gt
from gt.dispatcher.core import Dispatcher
from gt.program.code import free
from gt.spec import float32
from gt.transport.messages import VERSION, Batch, Configure, Hello, Join, KindDef, Mail, encode

CLIENTS, WORKERS, FEW = 1000, 4096, 64
F = float32.code
SPEC = (F, 16, 16)
FULL, ADD = KindDef(1, "full", ((-3,),), ((16, 16), F)), KindDef(2, "add", (SPEC, SPEC), ())
BATCH = 100  # instructions of a batch


class Simulated:
    """A dispatcher's core, and peers that only send."""

    def __init__(self, workers: int, clients: int) -> None:
        self.core = Dispatcher()
        self.core.tables.most_clients = clients
        self.core.expect(workers)
        self.sent = self.bytes = 0
        self.serial = 0
        before = memory()
        self.join_seconds = took(lambda: [self.worker(i) for i in range(workers)])
        middle = memory()
        self.hello_seconds = took(lambda: [self(f"c{i}", Hello(VERSION, "", "host", i)) for i in range(clients)])
        for i in range(clients):
            self(f"c{i}", Batch(1, (FULL, ADD), [(1, 1, 0.5), (1, 2, 0.25)]))
        self.worker_bytes, self.client_bytes = (middle - before) / workers, (memory() - middle) / clients

    def __call__(self, peer: str, message: Any) -> list[Mail]:
        mails = self.core.handle(Mail(peer, message))
        self.sent += len(mails)
        return mails

    def whole(self, peer: str, message: Any) -> list[Mail]:
        """The answers to a message of which others need not wait for the end."""
        mails = self(peer, message)
        while self.core.tables.cut:
            mails += self.core.advance()
        return mails

    def worker(self, i: int) -> None:
        self(f"w{i}", Join(VERSION, "", f"w{i}", "numpy", "cpu", f"host{i // 8}", i, f"ipc://w{i}", f"tcp://10.0.0.1:{i}"))

    def rate(self, clients: int, rounds: int) -> float:
        """Instructions a second that are decided and written for workers, encoding included, by clients in turns."""
        code = [(2, 3 + i, 1, 2) for i in range(BATCH // 2)] + [free(3 + i) for i in range(BATCH // 2)]

        def work() -> None:
            for n in range(rounds):
                for i in range(clients):
                    for mail in self(f"c{i}", Batch(n + 2, (), code)):
                        self.bytes += len(encode(mail.message))

        return clients * rounds * BATCH / took(work)

    def step(self) -> float:
        """Seconds to plan and write a step of a data-parallel layer over all workers: a product, two elementwise ops and a sum
        whose terms lie everywhere and are added up."""
        rows = 16 * len(self.core.tables.workers)
        x, w = (F, rows, 16), SPEC
        self.serial += 1
        s = self.serial
        kinds = ()
        if s == 1:
            self("c0", Configure({"rows": {"mesh": None, "axes": [0], "workers": None}}))
            self("c0", Configure({"rows": {"mesh": None, "axes": [0], "workers": None},
                                  "copies": {"mesh": None, "axes": [None], "workers": None}}))  # fmt: skip
            kinds = (
                KindDef(11, "full", ((-3,),), ((rows, 16), F), "rows"), KindDef(12, "full", ((-3,),), ((16, 16), F), "copies"),
                KindDef(13, "matmul", (x, w), ()), KindDef(14, "relu", (x,), ()), KindDef(15, "mul", (x, x), ()),
                KindDef(16, "sum", (x,), ((0,), False)), KindDef(17, "add", ((F, 16), (F, 16)), ()),
            )  # fmt: skip
        at = 1000 * s
        code = [(11, at, 0.5), (12, at + 1, 0.25), (13, at + 2, at, at + 1), (14, at + 3, at + 2), (15, at + 4, at + 3, at + 2),
                (16, at + 5, at + 4), (17, at + 6, at + 5, at + 5)]  # fmt: skip
        gets = ((s, at + 6, (F, 16)),)
        out: list[Mail] = []
        seconds = took(lambda: out.extend(self.whole("c0", Batch(s + 1, kinds, code, gets))))
        failed = [m.message for m in out if type(m.message).__name__ in ("Failed", "Bye")]
        assert not failed and len(out) >= len(self.core.tables.workers), failed or len(out)
        return seconds


def memory() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def scale_out() -> Iterator[Result]:
    """The dispatcher's core with 1,000 clients and 4,096 workers; the rival has one of each, or 64 workers."""
    one = Simulated(1, 1)
    few = Simulated(FEW, 1)
    many = Simulated(WORKERS, CLIENTS)
    best = [(many.rate(CLIENTS, 3), one.rate(1, 3 * CLIENTS)) for _ in range(3)]
    yield rates("scale_out", max(b[0] for b in best), max(b[1] for b in best), "instr/s")
    yield times("scale_out-worker", many.worker_bytes / 1024, few.worker_bytes / 1024, "KB/worker")
    yield times("scale_out-client", many.client_bytes / 1024, few.client_bytes / 1024, "KB/client")
    yield times("scale_out-join", many.join_seconds / WORKERS * 1e3, few.join_seconds / FEW * 1e3, "ms/join")
    yield times("scale_out-hello", many.hello_seconds / CLIENTS * 1e3, few.hello_seconds * 1e3, "ms/hello")
    yield times("scale_out-plan", many.step() * 1e3, few.step() * 1e3, "ms/step")
    yield times("scale_out-again", min(many.step() for _ in range(3)) * 1e3, min(few.step() for _ in range(3)) * 1e3, "ms/step")


def processes_in_pool() -> Iterator[Result]:
    """Real worker processes of the NumPy engine (200, or WORKERS): join, a program with collectives, leave; the rival has 4."""
    many = _pool(int(os.environ.get("WORKERS", "200")))
    few = _pool(4)
    for i, (what, unit) in enumerate((("join", "s"), ("program", "s"), ("leave", "s"), ("memory", "MB/worker"))):
        yield times(f"scale_out_processes-{what}", many[i], few[i], unit)


def _pool(workers: int) -> tuple[float, float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GT_POOLS": folder, "GT_COLLECTIVES": "mail", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        began = time.perf_counter()
        pool = gt.pool("local", workers=workers, backend="numpy")
        with pool:
            while len(gt.client.default.session().workers) < workers:
                time.sleep(0.05)
            joined = time.perf_counter()
            gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
            a = np.random.default_rng(0).standard_normal((workers * 4, 64)).astype("f4")
            with gt.signal("rows"):
                x = gt.from_numpy(a)
            found = (x.T @ x).numpy()
            computed = time.perf_counter()
            np.testing.assert_allclose(found, a.T @ a, rtol=1e-3, atol=1e-3)
            pids = [m["pid"] for m in pool.record.members.values()]
            held = sum(psutil.Process(pid).memory_full_info().uss for pid in pids) / workers / (1 << 20)
            leaving = time.perf_counter()
        return joined - began, computed - joined, time.perf_counter() - leaving, held


CASES = {"scale_out": scale_out, "scale_out_processes": processes_in_pool}
