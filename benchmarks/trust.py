"""The cost of the checks of messages, kinds and operands: `chain`, `mlp` and `issue` on a server and worker as they are, and on
others without these checks (unchecked.py), in turns. Two clusters differ by some percent for as long as they live, so several
are started one after another, and each start counts once, by the median of its rounds. The "rival" is the one without: a ratio
of 0.98 means that checks cost 2% of the throughput; `-low` and `-high` are the ends of its 95% interval. `-cpu` counts the CPU
seconds of client, server and worker."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

from measure import Result, interval, rates, took
from stream import _free_port, _until_up
from unchecked import switch
from watch import chain, mlp, process_seconds

import gt
from gt.dispatcher.core import Dispatcher
from gt.program.code import free
from gt.spec import float32
from gt.transport import messages as m
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER

STARTS, ROUNDS = 8, 30
HERE = Path(__file__).parent


def issue() -> Callable[[], Any]:
    """As the case `issue`: the client thread's time for ops that nobody reads."""
    x, a = gt.ones(16, 16), gt.full((16, 16), 0.999)

    def work() -> None:
        for _ in range(50):
            for _ in range(200):
                x * a  # noqa: B018
            x.numpy()

    return work


WORK = {"chain": chain, "mlp": mlp, "issue": issue}


def client(address: str) -> None:
    """Runs the work named by each line of the input, and prints its seconds."""
    gt.connect(address)
    works = {name: make() for name, make in WORK.items()}
    for work in works.values():
        for _ in range(3):
            work()
    print("ready", flush=True)
    for line in sys.stdin:
        print(took(works[line.strip()]), flush=True)


class Pool:
    """A server, a worker and a client of it, each a process."""

    def __init__(self, stack: ExitStack, checked: bool) -> None:
        port = str(_free_port())
        ways = {name: ["-m", f"gt.{name}"] if checked else [str(HERE / "unchecked.py"), name] for name in ("server", "worker")}
        self.processes = [self._start(stack, [*ways["server"], "-p", port])]
        _until_up(int(port))
        self.processes.append(self._start(stack, [*ways["worker"], "-p", port]))
        self.client = self._start(stack, [str(HERE / "trust.py"), f"localhost:{port}"])
        self.processes.append(self.client)
        assert self.client.stdout is not None
        if self.client.stdout.readline() != "ready\n":
            raise SystemExit("the client did not start")

    def _start(self, stack: ExitStack, command: list[str]) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    def measure(self, case: str) -> tuple[float, float]:
        """Seconds of the client's clock, and CPU seconds of all."""
        assert self.client.stdin is not None and self.client.stdout is not None
        before = self._cpu()
        self.client.stdin.write(f"{case}\n")
        self.client.stdin.flush()
        seconds = json.loads(self.client.stdout.readline())
        return seconds, self._cpu() - before

    def _cpu(self) -> float:
        return sum(process_seconds(process.pid) for process in self.processes)


def trust() -> Iterator[Result]:
    """Throughput with the checks, and without them."""
    starts = [_start() for _ in range(STARTS)]
    for case in WORK:
        for at, (suffix, unit) in enumerate((("", "runs/s"), ("-cpu", "runs/CPU second"))):
            ratios = [[other[at] / own[at] for own, other in start[case]] for start in starts]
            theirs = statistics.median(1 / other[at] for start in starts for _, other in start[case])
            low, ratio, high = interval([statistics.median(each) for each in ratios])
            for end, value in (("", ratio), ("-low", low), ("-high", high)):
                yield rates(f"trust-{case}{suffix}{end}", value * theirs, theirs, unit)


def _start() -> dict[str, list[list[tuple[float, float]]]]:
    """Of each case the rounds of a new pool with checks and of one without, in turns, and neither always first."""
    with ExitStack() as stack:
        pools = [Pool(stack, checked) for checked in (True, False)]
        return {case: [_round(pools, case, i % 2) for i in range(ROUNDS)] for case in WORK}


def _round(pools: list[Pool], case: str, first: int) -> list[tuple[float, float]]:
    found = {at: pools[at].measure(case) for at in (first, 1 - first)}
    return [found[0], found[1]]


class Cores:
    """A dispatcher's core and a worker's in this process, and a chain of small ops that no trace replays: each instruction is
    decoded, planned and executed. `run` gives the CPU seconds of 1,000 ops."""

    def __init__(self, engine: str) -> None:
        self.dispatcher, self.worker, self.serial = Dispatcher(), Worker(make(engine)), count(2)
        self.worker.handle(m.Mail(DISPATCHER, m.Welcome("w", 0)))
        joined = m.Join(m.VERSION, "", "w", engine, "cpu", "here", 1, "ipc://w")
        for peer, message in (("w", joined), ("c", m.Hello(m.VERSION, "", "here", 1)), ("w", m.Attached(0, True, "c"))):
            self.dispatcher.handle(m.Mail(peer, message))
        spec = (float32.code, 16, 16)
        full = m.KindDef(1, "full", ((-3,),), (spec[1:], spec[0]))
        mul, add = (m.KindDef(2 + i, op, (spec, spec), ()) for i, op in enumerate(("mul", "add")))
        self._send(m.Batch(1, (full, mul, add), [(1, 1, 1.0), (1, 2, 0.999), (1, 3, 0.001)]))
        self.code: list[tuple] = []
        for id in range(10, 1010, 2):
            self.code += [(2, id, id - 1 if id > 10 else 1, 2), (3, id + 1, id, 3), free(id), free(id - 1)]
        self.code.append(free(1009))

    def _send(self, batch: m.Batch) -> None:
        for mail in self.dispatcher.handle(m.Mail("c", m.decode(m.encode(batch)))):
            for back in self.worker.handle(m.Mail(DISPATCHER, m.decode(m.encode(mail.message)))):
                if back.peer == DISPATCHER:
                    self.dispatcher.handle(m.Mail("w", back.message))

    def run(self) -> float:
        batch = m.Batch(next(self.serial), (), list(self.code))
        start = time.process_time()
        self._send(batch)
        return time.process_time() - start


def cores() -> Iterator[Result]:
    """The same for the cores alone, by CPU time: the most that checks can cost, as each op of a trace is checked once."""
    check = switch()
    for engine in ("numpy", "pytorch"):
        check(True)  # the first tensors have their specs noted
        made, found = Cores(engine), {True: [], False: []}
        for i in range(20 * ROUNDS):
            for checked in (True, False) if i % 2 else (False, True):
                check(checked)
                found[checked].append(made.run())
        if made.worker.executor.failures:
            raise SystemExit("instructions of the chain failed")
        mine, theirs = (1000 / statistics.median(sorted(found[c])[: 7 * ROUNDS]) for c in (True, False))
        yield rates(f"trust-cores-{engine}", mine, theirs, "ops/CPU second")


CASES = {"trust": trust, "trust-cores": cores}

if __name__ == "__main__":
    client(sys.argv[1])
