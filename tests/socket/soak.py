"""`make soak`: clients and workers come, compute, and are ended or killed, for an hour; then a dispatcher and a worker that
were there all the time are as large as after the first rounds, and have as many descriptors, threads and files. SOAK_SECONDS
is its length; the suite runs a short one (test_soak.py)."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import processes as of_tests
import psutil
from processes import Process, Processes, until

VISIT = """
import random, sys, time, warnings
import numpy as np, gt
warnings.simplefilter("ignore")
rng = random.Random(int(sys.argv[2]))
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
print("here", flush=True)
for i in range(rng.randint(3, 12)):
    try:
        n = rng.randint(1, 300) if i else 300
        a = np.random.default_rng(i).random((n, 64), "f4")
        with gt.signal(rng.choice(["alone", "rows"]) if i else "rows"):  # the first loads the modules of collectives
            x = gt.tensor(a)
        y = (x.T @ x).sum(axis=0) + x.sum() * 0
        assert np.allclose(y.numpy(), (a.T @ a).sum(0), rtol=1e-2), "a wrong value"
        held = [gt.ones(1000) * rng.random() for _ in range(rng.randint(1, 50))]
        if rng.random() < 0.3: gt.randn(1 << 18).numpy()
    except gt.errors.WorkerLost:
        pass
print("done", flush=True)
if rng.random() < 0.3: x @ x.T; time.sleep(60)  # to be killed
"""


class Soak:
    """`folder` is one of mode 700 with a short name, for sockets."""

    def __init__(self, processes: Processes, seconds: float, folder: str, seed: int = 0) -> None:
        self.processes, self.seconds, self.folder, self.rng = processes, seconds, folder, random.Random(seed)
        self.server, self.port = processes.server("--expect", "2", XDG_RUNTIME_DIR=folder)
        self.stays = processes.worker(self.port, "--id", "stays", XDG_RUNTIME_DIR=folder)
        self.comes = processes.worker(self.port, XDG_RUNTIME_DIR=folder)
        self.rounds = self.killed = 0
        self.samples: list[dict[str, float]] = []
        self.began = time.monotonic()

    def run(self, warm: float, say: Callable[[str], None] | None = None) -> dict[str, tuple[float, float]]:
        """Each size after the first seconds, and at the end. No process may die but the killed ones. `say` is called with
        each size on the way."""
        end, measured = time.monotonic() + self.seconds, time.monotonic() + warm
        while time.monotonic() < end:
            self.round()
            if time.monotonic() > measured or not self.samples:
                self.samples.append(self.sizes())
                measured = time.monotonic() + warm
                if say is not None:
                    say(f"{time.monotonic() - self.began:.0f} s, {self.rounds} rounds: {json.dumps(self.samples[-1])}")
        first, last = self.samples[min(1, len(self.samples) - 1)], self.sizes()
        return {name: (first[name], last[name]) for name in first}

    def round(self) -> None:
        self.rounds += 1
        server = f"localhost:{self.port}"
        seeds = [str(self.rng.randrange(1 << 30)) for _ in range(2)]
        visits = [self.processes.script(VISIT, server, seed, XDG_RUNTIME_DIR=self.folder) for seed in seeds]
        for visit in visits:
            visit.wait_for("here", 60)
        if self.rng.random() < 0.5 and self.rounds > 1:  # in the first round both workers load the modules of collectives
            self.killed += 1
            self.comes.kill(self.rng.choice([signal.SIGKILL, signal.SIGTERM]))
            self.forget(self.comes)
            self.comes = self.processes.worker(self.port, XDG_RUNTIME_DIR=self.folder)
        for visit in visits:
            visit.wait_for("done", 60)
            visit.popen.send_signal(self.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))  # or it has ended
            self.forget(visit)
        for there in (self.server, self.stays):
            assert there.popen.poll() is None, there.err[-2000:]

    def forget(self, process: Process) -> None:
        """It has ended; its output is of no use."""
        process.close()
        self.processes.all.remove(process)
        for path in (process.out_path, process.err_path):
            path.unlink()

    def clients(self) -> int:
        """How many the dispatcher believes to be there."""
        lines = [line for line in self.server.err.splitlines() if " client " in line]
        return sum(" joined" in line for line in lines) - sum(" left" in line for line in lines)

    def sizes(self) -> dict[str, float]:
        until(lambda: self.clients() == 0, what="all visitors have left")
        time.sleep(1.5)  # a worker gives memory back a moment after
        folders = (self.processes.files, Path(self.folder))
        files = [path for folder in folders for path in folder.rglob("*")]
        found: dict[str, float] = {"files": len(files)}
        for name, there in (("dispatcher", self.server), ("worker", self.stays)):
            process = psutil.Process(there.pid)
            found[f"MB of the {name}"] = round(process.memory_info().rss / (1 << 20), 2)
            found[f"descriptors of the {name}"] = process.num_fds()
            found[f"threads of the {name}"] = process.num_threads()
        return found


def grown(sizes: dict[str, tuple[float, float]], memory: float = 15.0, count: float = 6.0) -> list[str]:
    """The sizes that have grown by more than so many megabytes, descriptors, threads or files."""
    return [
        f"{name}: {first:.0f} to {last:.0f}" for name, (first, last) in sizes.items()
        if last - first > (memory if name.startswith("MB") else count)
    ]  # fmt: skip


def main() -> int:
    seconds = float(os.environ.get("SOAK_SECONDS", 3600))
    of_tests.PATIENCE = 600.0  # it may share the machine with anything for an hour
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as sockets,
        Processes(Path(folder)) as processes,
    ):
        soak = Soak(processes, seconds, sockets)
        sizes = soak.run(warm=max(5.0, seconds / 20), say=partial(print, flush=True))
        print(json.dumps({"seconds": seconds, "rounds": soak.rounds, "killed": soak.killed, "sizes": sizes}, indent=2))
        if found := grown(sizes):
            print("grown:", *found, sep="\n  ", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
