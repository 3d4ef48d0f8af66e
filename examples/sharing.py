"""Two people's scripts on one worker: one trains, the other asks small questions all the while, with a quota on its memory.

python examples/sharing.py            starts a server with one worker, and both scripts
python examples/sharing.py train SERVER    the first alone, as on a desk of its own
python examples/sharing.py ask SERVER      the second
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import gt
from gt.transport.addresses import free_port

SECONDS = 1.5


def train(server: str) -> None:
    """A trainer, which never reads until its end: its instructions in flight are bounded."""
    gt.connect(server, priority="batch")
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(256, 256), gt.nn.ReLU(), gt.nn.Linear(256, 1))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)
    x = gt.randn(256, 256)
    y = x.mean(1, keepdim=True)
    model(x).numpy()  # the worker is there
    print("training", flush=True)
    told, steps = threading.Thread(target=sys.stdin.read, daemon=True), 0
    told.start()
    while told.is_alive() or not steps:  # until its input ends: Ctrl-D, or the other script's end
        loss = ((model(x) - y) ** 2).mean()  # ()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"the trainer made {steps} steps, its loss is {loss.item():.6f}")


def ask(server: str) -> None:
    """Someone at a prompt: small products, each read at once."""
    gt.connect(server, priority="interactive", memory="64MB")
    a, waits = gt.ones(64, 64), []
    assert (a @ a)[0, 0].item() == 64.0  # the worker knows this client
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        assert (a @ a)[0, 0].item() == 64.0
        waits.append(time.perf_counter() - start)
    waits.sort()
    print(f"{len(waits)} questions, the median answered in {waits[len(waits) // 2] * 1e3:.1f} ms")
    try:
        gt.ones(8192, 8192).sum().item()
    except gt.errors.OutOfMemory as refused:
        print("over the quota:", str(refused).splitlines()[0])
    for client in gt.debug.clients():
        print(f"client {client['number']}: {client['seconds']:.2f} s of device time, {client['got']:.0%} of all, "
              f"{client['wanted']:.0%} was its due, {client['bytes']:,} bytes")  # fmt: skip


def main() -> None:
    if len(sys.argv) == 3:
        {"train": train, "ask": ask}[sys.argv[1]](sys.argv[2])
        return
    port = str(free_port())
    here = [sys.executable, os.path.abspath(__file__)]
    server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", port, "--workers", "1"])
    try:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        trainer = subprocess.Popen([*here, "train", f"localhost:{port}"], **pipes, text=True)
        assert trainer.stdout is not None and trainer.stdout.readline() == "training\n"
        subprocess.run([*here, "ask", f"localhost:{port}"], check=True)
        print(trainer.communicate()[0], end="")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
