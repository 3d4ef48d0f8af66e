"""`make soak`: clients and workers come, compute, and are ended or killed, for an hour; then a dispatcher and a worker that
were there all the time are as large as after the first rounds, have as many descriptors, threads and files, and their memory
has not risen with the rounds in the later half. SOAK_SECONDS is its length; the suite runs a short one (test_soak.py).
With SOAK_SESSIONS=4000 the rounds are so many clients of a few processes, tens a second, instead."""

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
from itertools import combinations
from pathlib import Path
from statistics import median

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

SAMPLES = 60  # of the sizes, on the way
JUDGED = 500  # fewest rounds of a later half whose memory is judged by its slope
RISE = 0.1  # KB a round: memory that rises faster is kept by something
QUIET = 2.5  # seconds without clients after which dispatcher and worker have returned free memory
OWN = "KB of its own"  # memory that is no part of a file or a shared segment
Sizes = dict[str, float]
SESSIONS = """
import sys, random, warnings
import gt
warnings.simplefilter("ignore")
rng = random.Random(int(sys.argv[2]))
for i in range(int(sys.argv[3])):
    gt.connect(sys.argv[1])
    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
    try:
        with gt.signal(rng.choice(["alone", "rows"])):
            x = gt.ones(10 * rng.randint(1, 20), 64)
        y = (x.T @ x).sum(axis=0) + x.sum() * 0
        held = [gt.ones(1000) * rng.random() for _ in range(rng.randint(1, 50))]
        y.numpy()
    except gt.errors.WorkerLost:
        pass
    gt.disconnect()
    if i == 0: print("here", flush=True)
"""


class Soak:
    """`folder` is one of mode 700 with a short name, for sockets."""

    def __init__(self, processes: Processes, seconds: float, folder: str, seed: int = 0) -> None:
        self.processes, self.seconds, self.folder, self.rng = processes, seconds, folder, random.Random(seed)
        self.server, self.port = processes.server("--expect", "2", XDG_RUNTIME_DIR=folder)
        self.stays = processes.worker(self.port, "--id", "stays", XDG_RUNTIME_DIR=folder)
        self.comes = processes.worker(self.port, XDG_RUNTIME_DIR=folder)
        self.rounds = self.killed = 0
        self.samples: list[tuple[int, Sizes]] = []  # with the rounds before them
        self.began = time.monotonic()

    def run(self, warm: float, say: Callable[[str], None] | None = None) -> dict[str, tuple[float, float]]:
        """Each size after the first seconds, and at the end. No process may die but the killed ones. `say` is called with
        each size on the way."""
        end, measured = time.monotonic() + self.seconds, time.monotonic() + warm
        while time.monotonic() < end:
            self.round()
            if time.monotonic() > measured or not self.samples:
                self._sample(say)
                measured = time.monotonic() + warm
        self._sample(say)
        return self._first_and_last()

    def run_sessions(self, count: int, say: Callable[[str], None]) -> dict[str, tuple[float, float]]:
        """The same for so many clients instead of a time."""
        for _ in range(SAMPLES):
            self.sessions(count // SAMPLES)
            self._sample(say)
        return self._first_and_last()

    def _sample(self, say: Callable[[str], None] | None) -> None:
        self.samples.append((self.rounds, self.sizes()))
        if say is not None:
            say(f"{time.monotonic() - self.began:.0f} s, {self.rounds} rounds: {json.dumps(self.samples[-1][1])}")

    def _first_and_last(self) -> dict[str, tuple[float, float]]:
        first, last = self.samples[1][1], self.samples[-1][1]
        return {name: (first[name], last[name]) for name in first}

    def round(self) -> None:
        self.rounds += 1
        server = f"localhost:{self.port}"
        seeds = [str(self.rng.randrange(1 << 30)) for _ in range(2)]
        visits = [self.processes.script(VISIT, server, seed, XDG_RUNTIME_DIR=self.folder) for seed in seeds]
        for visit in visits:
            visit.wait_for("here", 60)
        if self.rng.random() < 0.5 and self.rounds > 1:  # in the first round both workers load the modules of collectives
            self.replace_worker()
        for visit in visits:
            visit.wait_for("done", 60)
            visit.popen.send_signal(self.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))  # or it has ended
            self.forget(visit)
        for there in (self.server, self.stays):
            assert there.popen.poll() is None, there.err[-2000:]

    def sessions(self, count: int) -> None:
        """So many clients of one process, one after the other, each of which counts as a round; one worker after the other is
        killed meanwhile."""
        visits = self.processes.script(
            SESSIONS, f"localhost:{self.port}", str(self.rng.randrange(1 << 30)), str(count), XDG_RUNTIME_DIR=self.folder
        ).wait_for("here")
        while visits.popen.poll() is None:
            self.replace_worker()
        assert visits.ended() == 0, visits.err
        self.forget(visits)
        self.rounds += count

    def replace_worker(self) -> None:
        """Kill a worker, or ask it to leave; another comes."""
        self.killed += 1
        self.comes.kill(self.rng.choice([signal.SIGKILL, signal.SIGTERM]))
        self.forget(self.comes)
        self.comes = self.processes.worker(self.port, XDG_RUNTIME_DIR=self.folder)

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

    def sizes(self) -> Sizes:
        until(lambda: self.clients() == 0, what="all visitors have left")
        time.sleep(QUIET)
        folders = (self.processes.files, Path(self.folder))
        files = [path for folder in folders for path in folder.rglob("*")]
        found: Sizes = {"files": len(files)}
        for name, there in (("dispatcher", self.server), ("worker", self.stays)):
            process = psutil.Process(there.pid)
            memory = process.memory_info()
            found[f"MB of the {name}"] = round(memory.rss / (1 << 20), 2)
            found[f"{OWN} of the {name}"] = (memory.rss - memory.shared) >> 10
            found[f"descriptors of the {name}"] = process.num_fds()
            found[f"threads of the {name}"] = process.num_threads()
        return found


def grown(sizes: dict[str, tuple[float, float]], memory: float = 15.0, count: float = 6.0) -> list[str]:
    """The sizes that have grown by more than so many megabytes, descriptors, threads or files."""
    return [
        f"{name}: {first:.0f} to {last:.0f}" for name, (first, last) in sizes.items()
        if not name.startswith(OWN) and last - first > (memory if name.startswith("MB") else count)
    ]  # fmt: skip


def slopes(samples: list[tuple[int, Sizes]]) -> dict[str, float]:
    """By how many KB the memory of each process has risen in a round, in the later half of the rounds: the median over all
    pairs of samples, which a few odd ones do not change. Empty if there were too few rounds."""
    first, last = samples[0][0], samples[-1][0]
    later = [(rounds, sizes) for rounds, sizes in samples if rounds >= (first + last) / 2]
    if len(later) < 5 or later[-1][0] - later[0][0] < JUDGED:
        return {}
    return {
        name: median((b[name] - a[name]) / (n - m) for (m, a), (n, b) in combinations(later, 2) if n > m)
        for name in samples[-1][1]
        if name.startswith(OWN)
    }


def rising(slopes: dict[str, float], most: float = RISE) -> list[str]:
    """The processes whose memory rises with the rounds."""
    return [f"{name}: rises by {slope:.2f} KB a round" for name, slope in slopes.items() if slope > most]


def main() -> int:
    seconds, sessions = float(os.environ.get("SOAK_SECONDS", 3600)), int(os.environ.get("SOAK_SESSIONS", 0))
    of_tests.PATIENCE = 600.0  # it may share the machine with anything for an hour
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as sockets,
        Processes(Path(folder)) as processes,
    ):
        soak = Soak(processes, seconds, sockets)
        say = partial(print, flush=True)
        sizes = soak.run_sessions(sessions, say) if sessions else soak.run(max(5.0, seconds / SAMPLES), say)
        slope = slopes(soak.samples)
        told = {
            "seconds": round(time.monotonic() - soak.began),
            "rounds": soak.rounds,
            "killed": soak.killed,
            "sizes": sizes,
            "KB a round": slope,
        }
        print(json.dumps(told, indent=2))
        if not slope:
            print(f"fewer than {2 * JUDGED} rounds: slopes of memory are not judged", file=sys.stderr)
        if found := grown(sizes) + rising(slope):
            print("grown:", *found, sep="\n  ", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
