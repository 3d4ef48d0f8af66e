"""The cost of the stream: per op, per round trip, at the start, with several clients, and in the dispatcher alone."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import zmq
from measure import Result, best, rates, times, took

import gt
from gt.client.here import here
from gt.dispatcher.core import Dispatcher
from gt.spec import float32
from gt.transport.addresses import ipc_address
from gt.transport.messages import VERSION, Batch, Hello, Join, KindDef, Mail

CLIENTS = 1000  # that a dispatcher admits


def chains() -> tuple[Callable[[], float], Callable[[], float]]:
    """4,000 small elementwise ops and one read, in GT and in PyTorch: microseconds an op."""
    n = 4000

    def of(lib: Any) -> Callable[[], float]:
        x, a, b = lib.ones(16, 16), lib.full((16, 16), 0.999), lib.full((16, 16), 0.001)

        def work() -> None:
            y = x
            for _ in range(n // 2):
                y = y * a + b
            y.numpy()

        return lambda: took(work) / n * 1e6

    return of(gt), of(torch)


def chain() -> Iterator[Result]:
    """4,000 small elementwise ops and one read."""
    yield times("chain", *best(*chains(), 9), "us/op")


def item() -> Iterator[Result]:
    """A Dataset that reads a label by `.item()` and a row by `.tolist()` for each sample: microseconds a sample."""
    n = 2000

    def of(lib: Any) -> Callable[[], float]:
        labels, rows = lib.arange(10_000), lib.ones(10_000, 4)

        class Samples:
            def __len__(self) -> int:
                return n

            def __getitem__(self, i: int) -> tuple:
                return labels[i].item(), rows[i].tolist()

        samples = Samples()

        def work() -> None:
            for i in range(n):
                samples[i]

        work()
        return lambda: took(work) / n * 1e6

    yield times("item", *best(of(gt), of(torch), 5), "us/sample")


def issue() -> Iterator[Result]:
    """The client thread's time for an op, without and with the tape."""
    n = 200

    def cost(x, a) -> float:
        def work() -> None:
            for _ in range(n):
                x * a  # noqa: B018

        x.detach().numpy()
        return took(work) / n * 1e6

    for case, grad in (("issue", False), ("issue-tape", True)):
        ours = gt.ones(16, 16, requires_grad=grad), gt.full((16, 16), 0.999)
        theirs = torch.ones(16, 16, requires_grad=grad), torch.full((16, 16), 0.999)
        yield times(case, *best(lambda ours=ours: cost(*ours), lambda theirs=theirs: cost(*theirs), 40), "us/op")


# A message from client to relay to worker, and straight back from worker to client: the way a read takes, bare.
RELAY = """
import sys, zmq
c = zmq.Context(); r = c.socket(zmq.ROUTER); r.bind(sys.argv[1])
worker = None
while True:
    who, *rest = r.recv_multipart()
    if who == b"worker": continue
    r.send_multipart([b"worker", who, *rest])
"""
WORKER = """
import sys, zmq
c = zmq.Context(); d = c.socket(zmq.DEALER); d.setsockopt(zmq.IDENTITY, b"worker"); d.connect(sys.argv[1]); d.send(b"here")
data = c.socket(zmq.ROUTER); data.bind(sys.argv[2])
while True:
    who, message = d.recv_multipart()
    if who == b"client":
        while data.poll(0): data.recv_multipart()
        data.send_multipart([who, message])
"""


class PingPong:
    """The bare way through as many hops: three processes, no work."""

    def __init__(self, stack: ExitStack) -> None:
        name = secrets.token_hex(6)
        front, back = ipc_address(name), ipc_address(name + "-data")
        for code, args in ((RELAY, [front]), (WORKER, [front, back])):
            process = subprocess.Popen([sys.executable, "-c", code, *args])
            stack.callback(process.wait)
            stack.callback(process.kill)
        context = zmq.Context.instance()
        self.out, self.back = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for socket, address in ((self.out, front), (self.back, back)):
            stack.callback(socket.close, 0)
            socket.setsockopt(zmq.IDENTITY, b"client")
            socket.connect(address)
        self.back.send(b"here")
        deadline = time.monotonic() + 10
        while not self.back.poll(50):  # both are up when the first one comes back
            self.out.send(b"x" * 40)
            if time.monotonic() > deadline:
                raise RuntimeError("the ping-pong did not start")
        while self.back.poll(100):
            self.back.recv()

    def __call__(self) -> None:
        self.out.send(b"x" * 40)
        self.back.recv()


def roundtrip() -> Iterator[Result]:
    """One op and its read: by a worker, and where the client may answer it itself."""
    x = gt.ones(1)
    session = here().session

    def typical(work) -> float:
        return sorted(took(work) for _ in range(100))[50] * 1e6

    with ExitStack() as stack:
        ping = PingPong(stack)
        for name, session.local.on in (("roundtrip", False), ("roundtrip-here", True)):
            yield times(name, *best(lambda: typical(lambda: (x + 1).item()), lambda: typical(ping), 9), "us")


def startup() -> Iterator[Result]:
    """From nothing to a printed tensor."""
    ours = "import gt; print(gt.randn(2, 2))"
    rivals = {
        "numpy": "import numpy; print(numpy.random.randn(2, 2))",
        "pytorch": "import torch; print(torch.randn(2, 2))",
    }

    def script(code: str, **environment: str) -> float:
        env = {**os.environ, **environment}
        return took(lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=env))

    for backend, theirs in rivals.items():
        pair = best(lambda backend=backend: script(ours, GT_BACKEND=backend), lambda theirs=theirs: script(theirs), 3)
        yield times(f"startup-{backend}", *pair, "s")


CLIENT = """
import sys, time, gt
gt.connect(sys.argv[1])
x, a, b = gt.ones(16, 16), gt.full((16, 16), 0.999), gt.full((16, 16), 0.001)
def steps(n):
    global x
    for _ in range(n): x = x * a + b
    x.numpy()
steps(500)
print("ready", flush=True)
sys.stdin.readline()
end, done = time.perf_counter() + 2.0, 0
while time.perf_counter() < end:
    steps(500); done += 1000
print(done / 2.0, flush=True)
"""


def clients() -> Iterator[Result]:
    """1, 2 and 4 client processes on one worker: their rates together, against one client's."""
    port = _free_port()
    with ExitStack() as stack:
        server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(port), "--workers", "1"])
        stack.callback(server.wait)
        stack.callback(server.terminate)
        _until_up(port)
        alone = max(_together(port, 1) for _ in range(3))
        for n in (1, 2, 4):
            yield rates(f"clients-{n}", max(_together(port, n) for _ in range(3)), alone, "ops/s")


def _together(port: int, n: int) -> float:
    command = [sys.executable, "-c", CLIENT, f"localhost:{port}"]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(n)]
    for p in started:
        assert p.stdout and p.stdout.readline() == "ready\n"
    for p in started:
        assert p.stdin
        p.stdin.write("\n")
        p.stdin.flush()
    total = sum(float(p.stdout.readline()) for p in started if p.stdout)
    for p in started:
        p.communicate()
    return total


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _until_up(port: int) -> None:
    from gt.transport.addresses import await_listener

    if not await_listener(ipc_address(str(port)), lambda: True, 20):
        raise RuntimeError("the server did not start")


def decide() -> Iterator[Result]:
    """Instructions a second that the dispatcher's core rewrites, with no sockets; the rival is how many torch issues."""
    x = torch.ones(16, 16)

    def eager() -> float:
        def work() -> None:
            y = x
            for _ in range(2000):
                y = y * x

        return took(work) / 2000

    for workers in (1, 8, 1024):
        mine, theirs = best(deciding(workers), eager, 9)
        yield rates(f"decide-{workers}", 1 / mine, 1 / theirs, "instructions/s")


def deciding(workers: int) -> Callable[[], float]:
    """A function that has a dispatcher's core of so many workers rewrite batches, and returns this thread's seconds for each
    instruction. The workers acknowledge nothing, so that after some hundred batches the core keeps the next ones waiting."""
    core, batches = _simulated(workers)
    serial = iter(range(2, 1_000_000))

    def ours() -> float:
        s = next(serial)
        mails = [Mail(peer, Batch(s, (), code)) for peer, code in batches]
        before = time.thread_time()
        found = [core.handle(mail) for mail in mails]
        seconds = time.thread_time() - before
        assert all(found), "a batch was not passed on"
        return seconds / sum(len(code) for _, code in batches)

    return ours


def _simulated(workers: int) -> tuple[Dispatcher, list[tuple[str, list]]]:
    """A dispatcher, that many workers with a client each up to `CLIENTS`, and a batch from each client, ever the same."""
    core = Dispatcher()
    pair = (float32.code, 16, 16)
    kinds = (KindDef(1, "full", ((-3,),), ((16, 16), float32.code)), KindDef(2, "mul", (pair, pair), ()))
    batches = []
    for i in range(workers):
        core.handle(Mail(f"w{i}", Join(VERSION, "", f"w{i}", "none", "cpu", "here", i, "ipc://none")))
    for i in range(min(workers, CLIENTS)):
        core.handle(Mail(f"c{i}", Hello(VERSION, "", "here", i)))
        core.handle(Mail(f"c{i}", Batch(1, kinds, [(1, 1, 1.0), (1, 2, 1.0)])))
        code: list[tuple] = []
        for n in range(64):  # an op and the free of the last one's result, as a client's loop writes them
            code += [(2, 3 + n, 2 + n if n else 1, 2), (0, 2 + n) if n else (0, 10_000)]
        batches.append((f"c{i}", [*code, (0, 66)]))
    return core, batches * max(1, 32 // workers)


CASES = {
    "chain": chain,
    "issue": issue,
    "item": item,
    "roundtrip": roundtrip,
    "startup": startup,
    "clients": clients,
    "decide": decide,
}
