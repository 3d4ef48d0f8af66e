"""Clients that share one worker: how long one waits while another keeps the worker busy, how time is divided, and the cost of
many clients. The rival is as many processes with plain PyTorch on the same device, in turns with GT's in one run. Each
case is by itself (`run.py share-weights`), `share` is all of them; the cost for a client alone is in share_alone.py."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import torch
from measure import Result, interval, rates, times
from stream import _free_port, _until_up

import gt

HERE = Path(__file__).parent
SECONDS, WHOLE, EDGE = 2.0, 30.0, 3.0  # of one measurement, of that of weights, and of its beginning and end
ROUNDS = 2  # of a case against its rival
PAIRS, BURST = 24, 0.6  # measurements of eight trainers against one, and the seconds of each
SMALL = 256  # the width of a trainer whose calls take at most 5 ms
BUSY, LARGE = (8192, 16384) if torch.cuda.is_available() else (1024, 2048)  # that keeps a worker busy, and of longer calls
EQUAL = 8  # trainers
BY_WORKER = "ask-worker"  # the role of one who asks and computes no answer by itself
READERS, READS = 64, 1000
CONNECTED, FEW, IN_ONE = 1000, 100, 50  # clients, of the comparison of memory, and in one process


class Process:
    """A process of a case: `work` has it do something, and gives the numbers that it prints."""

    def __init__(self, script: str, *arguments: object) -> None:
        command = [sys.executable, str(HERE / script), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def ready(self) -> None:
        if self.read() != "ready":
            raise RuntimeError(f"{self.process.args} ended before it was ready")

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().rstrip()

    def begin(self, line: object) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> list[float]:
        return [float(part) for part in self.read().split()]

    def work(self, seconds: float) -> list[float]:
        self.begin(seconds)
        return self.end()

    def close(self) -> None:
        self.process.kill()  # a worker ends its work for it
        self.process.communicate()


class Client(Process):
    """A trainer, or someone who asks (see share_client.py)."""

    def __init__(self, library: str, role: str, port: int, wide: int = SMALL, weight: float = 1.0, wait: bool = True) -> None:
        super().__init__("share_client.py", library, role, f"localhost:{port}", wide, weight)
        if wait:
            self.ready()


@contextmanager
def clients(*made: Client | Process) -> Iterator[tuple[Client | Process, ...]]:
    """These, when all are ready."""
    with ExitStack() as stack:
        for each in made:
            stack.callback(each.close)
        for each in made:
            each.ready()
        yield made


@contextmanager
def server(workers: int = 0) -> Iterator[int]:
    """A dispatcher, with workers or without; its port."""
    port = _free_port()
    command = [sys.executable, "-m", "gt.server", "-p", str(port), "--workers", str(workers)]
    process = subprocess.Popen(command)
    try:
        _until_up(port)
        yield port
    finally:
        process.terminate()
        process.wait()


def worker(port: int, script: str = "") -> subprocess.Popen[bytes]:
    """A worker that ends with its dispatcher; GT's, or that of a script."""
    return subprocess.Popen([sys.executable, *([script] if script else ["-m", "gt.worker"]), "-p", str(port)])


def together(*working: Client | Process, seconds: float = SECONDS) -> list[list[float]]:
    for client in working:
        client.begin(seconds)
    return [client.end() for client in working]


def with_trainer(name: str, role: str, wide: int) -> Iterator[Result]:
    """A client reads while a trainer runs, and two trainers run at once: GT's, and plain PyTorch's, in turns. On a GPU also
    PyTorch's with their steps as CUDA graphs: eager ones leave the device idle for most of the time."""
    with server(1) as port:
        libraries = ("gt", "torch", "torch-graph") if torch.cuda.is_available() else ("gt", "torch")
        sides = {library: [Client(library, role, port, wide, wait=False) for _ in range(2)] for library in libraries}
        asks = {library: Client(library, "ask", port, wait=False) for library in libraries}
        asks[BY_WORKER] = Client("gt", BY_WORKER, port, wait=False)
        found: dict[str, list[list[float]]] = {library: [] for library in libraries}
        by_worker: list[list[float]] = []
        with clients(*(client for pair in sides.values() for client in pair), *asks.values()):
            for _ in range(ROUNDS):
                for library, (first, second) in sides.items():
                    (step,), (p50, p99, _) = together(first, asks[library])
                    (one,), (other,) = together(first, second)
                    found[library].append([p50, p99, step, one + other])
                _, (p50, p99, _) = together(sides["gt"][0], asks[BY_WORKER])
                by_worker.append([p50, p99])
    best = {library: [min(r[i] for r in rows) for i in (0, 1)] for library, rows in found.items()}
    most = {library: [max(r[i] for r in rows) for i in (2, 3)] for library, rows in found.items()}
    yield times(f"{name}-p99-calls", best["gt"][1] * most["gt"][0], 2.0, "calls of GT's")
    for at, quantile in enumerate(("p50", "p99")):
        ours, theirs = (min(row[at] for row in rows) * 1e3 for rows in (by_worker, found["torch"]))
        yield times(f"{name}-{quantile}-{BY_WORKER}", ours, theirs, "ms")
    for library in libraries[1:]:
        case = name + library.removeprefix("torch")
        yield times(f"{case}-p50", best["gt"][0] * 1e3, best[library][0] * 1e3, "ms")
        yield times(f"{case}-p99", best["gt"][1] * 1e3, best[library][1] * 1e3, "ms")
        yield rates(f"{case}-trainer", most["gt"][0], most[library][0], "steps/s")
        yield rates(f"{case}-two-trainers", most["gt"][1], most[library][1], "steps/s")


def small() -> Iterator[Result]:
    """With a trainer whose calls take at most 5 ms."""
    yield from with_trainer("share-small", "train", SMALL)


def long() -> Iterator[Result]:
    """With a trainer whose calls take longer."""
    yield from with_trainer("share-long", "train", LARGE)


def gpt() -> Iterator[Result]:
    """With the benchmarks' GPT."""
    yield from with_trainer("share-gpt", "gpt", 1)


def weights() -> Iterator[Result]:
    """Two trainers of weights 3 and 1: their steps, and the device seconds that they had while both were busy. The steps count
    some that the lighter one had the device alone for: its last second of queued work, when the other had ended."""
    with server(1) as port, clients(*(Client("gt", "train", port, BUSY, w, wait=False) for w in (3.0, 1.0))) as pair:
        for client in pair:
            client.begin(WHOLE)
        used = [Counter[float](), Counter[float]()]
        for count, pause in zip(used, (EDGE, WHOLE - 2 * EDGE)):
            time.sleep(pause)
            count.update(_device_seconds(port))
        (heavy,), (light,) = (client.end() for client in pair)
    used[1].subtract(used[0])
    yield rates("share-weights-3-1", heavy / light, 3.0, "times as fast")
    yield rates("share-weights-seconds", used[1][3.0] / used[1][1.0], 3.0, "times the device seconds")


def _device_seconds(port: int) -> dict[float, float]:
    """Device seconds so far, by weight, asked by a client of another weight that leaves at once."""
    gt.connect(f"localhost:{port}", weight=2.0)
    (stats,) = gt.debug.get_worker_stats().values()
    gt.disconnect()
    return {share["weight"]: share["seconds"] for share in stats["shares"].values()}


def equal() -> Iterator[Result]:
    """Eight equal trainers against one alone, and against eight processes of plain PyTorch. Eight and one are measured right
    after one another, in either order, as work on a host's other cores slows either: the median of their ratios, the ends of
    its 95% interval, by resampling, and the pairs with the least and the largest ratio."""
    with server(1) as port:
        ours, theirs = ([Client(lib, "train", port, SMALL, wait=False) for _ in range(EQUAL)] for lib in ("gt", "torch"))
        found: list[dict[int, list[float]]] = []  # by the number of trainers, the rate of each
        with clients(*ours, *theirs):
            rival = max(sum(rate for (rate,) in together(*theirs)) for _ in range(ROUNDS))
            for n in range(PAIRS):
                groups = (ours[:1], ours) if n % 2 else (ours, ours[:1])
                found.append({len(group): [rate for (rate,) in together(*group, seconds=BURST)] for group in groups})
    ratios = sorted(sum(pair[EQUAL]) / pair[1][0] for pair in found)
    alone = statistics.median(pair[1][0] for pair in found)
    each = [statistics.fmean(rates_of_one) for rates_of_one in zip(*(pair[EQUAL] for pair in found))]
    low, middle, high = interval(ratios)
    for name, ratio in (("sum", middle), ("low", low), ("high", high), ("least", ratios[0]), ("most", ratios[-1])):
        yield rates(f"share-eight-{name}", ratio * alone, alone, "steps/s")
    yield rates("share-eight-jain", sum(each) ** 2 / (EQUAL * sum(r * r for r in each)), 1.0, "Jain's index")
    yield rates("share-eight-torch", sum(each), rival, "steps/s")


def readers() -> Iterator[Result]:
    """64 clients that read 1,000 times each, all at a time, against one that does alone; every value is looked at. Then, how
    far the slowest was when the first of its process had ended."""
    with server(1) as port:
        where = f"localhost:{port}"
        many = [Process("share_sessions.py", where, n, 16, READS) for n in range(0, READERS, 16)]
        with clients(Process("share_sessions.py", where, READERS, 1, READS), *many) as (one, *_):
            single = READS / _seconds(lambda: one.work(1))
            reads: list[list[float]] = []
            took = _seconds(lambda: reads.extend(together(*many)))
    yield rates("share-readers-64", sum(done for done, _ in reads) / took, single, "reads/s")
    yield rates("share-readers-slowest", min(least for _, least in reads), READS, "reads")


def connected() -> Iterator[Result]:
    """1,000 clients connected, all but one idle: the dispatcher's memory against that with 100; the latency of the one, and
    the dispatcher's time for it, with 100 and with 1,000 against those of one alone."""
    with server(1) as port, ExitStack() as stack:
        dispatcher = _listener(port)
        found = []
        with clients(Client("gt", BY_WORKER, port, wait=False)) as (ask,):
            for before, count in ((0, 0), (0, FEW), (FEW, CONNECTED)):
                last = count - (count == CONNECTED)  # the one that asks is a client, too
                idle = [
                    Process("share_sessions.py", f"localhost:{port}", n, min(IN_ONE, last - n), 0)
                    for n in range(before, last, IN_ONE)
                ]
                stack.enter_context(clients(*idle))
                p50 = min(ask.work(SECONDS)[0] for _ in range(ROUNDS))
                cpu = -sum(dispatcher.cpu_times()[:2])
                ask.work(SECONDS)
                cpu += sum(dispatcher.cpu_times()[:2])
                found.append((dispatcher.memory_info().rss, p50, cpu))
    (none, alone, least), (few, soon, cheap), (all_, late, dear) = found
    yield times("share-connected-memory", all_ / 1e6, few / 1e6, "MB")
    yield times("share-connected-each", (all_ - few) / (CONNECTED - FEW) / 1e3, (few - none) / FEW / 1e3, "KB a client")
    for count, p50, cpu in ((FEW, soon, cheap), (CONNECTED, late, dear)):
        yield times(f"share-connected-p50-{count}", p50 * 1e3, alone * 1e3, "ms")
        yield times(f"share-connected-cpu-{count}", cpu / SECONDS * 100, least / SECONDS * 100, "% of a core")


def _listener(port: int) -> psutil.Process:
    """The dispatcher of this port."""
    return next(p for p in psutil.Process().children() if str(port) in p.cmdline() and "gt.server" in p.cmdline())


def _seconds(work: Callable[[], object]) -> float:
    from measure import took

    return took(work)


def share() -> Iterator[Result]:
    """All of them."""
    from share_alone import alone

    for case in (small, long, gpt, weights, equal, alone, readers, connected):
        yield from case()


CASES = {
    "share": share,
    **{f"share-{case.__name__}": case for case in (small, long, gpt, weights, equal, readers, connected)},
}
