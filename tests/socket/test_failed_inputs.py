"""An op that fails on one worker only: whatever others made of it together is an error wherever it is read, never a number."""

from __future__ import annotations

import signal

import pytest
from processes import WAYS, Process, Processes, until

FAILING = """
import itertools, os, random, sys
from gt.worker import __main__ as worker

op, often, *rest = sys.argv[1:]
chance = random.Random(0)

def failing(run):
    def fail(*operands):
        if chance.random() < float(often):
            raise MemoryError("no room for it")
        return run(*operands)
    return fail

def patch(engine):
    plain = engine.kernel
    engine.kernel = lambda self, kind: failing(plain(self, kind)) if kind.row.name == op else plain(self, kind)

if os.environ["GT_BACKEND"] == "numpy":
    from gt.worker.engine.numpy import NumPyEngine
    patch(NumPyEngine)
else:
    from gt.worker.engine.torch.engine import TorchEngine
    patch(TorchEngine)
if op.startswith("part "):  # not an op but an op on its result for the others
    from gt.worker.collectives import torch_arrays
    plain, kind = torch_arrays.TorchArrays.owned, {"MemoryError": MemoryError, "OSError": OSError}[op.split()[1]]
    # right; once, so that it takes part with nothing; twice, so that it cannot; twice again; right from there on
    turns = itertools.chain([0, 1, 0, 1, 1, 1, 1], itertools.repeat(0))
    def own(*given):
        if next(turns):
            raise kind("no room for it")
        return plain(*given)
    torch_arrays.TorchArrays.owned = own
if op == "midst":  # the second time
    from gt.worker.collectives import peer_memory
    fold, times = peer_memory.PeerMemoryGroup._fold, itertools.count()
    def failing_fold(*given):
        if next(times) == 1:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:120] DefaultCPUAllocator: can't allocate memory: no room for it")
        return fold(*given)
    peer_memory.PeerMemoryGroup._fold = failing_fold
sys.exit(worker.main(rest))
"""

SCRIPT = """
import sys, numpy as np, gt
gt.connect(sys.argv[1])
C, S = gt.SignalConfig, gt.ShardConfig
gt.register_config("rows", C(S(axis=0)))
gt.register_config("columns", C(S(axis=1)))
gt.register_config("copies", C(S(replicated=True)))
gt.register_config("second", C(S(workers=[1])))

def bad(read, what):
    for t in read:
        try:
            print(what, "gave", t.numpy().ravel()[:3])
        except gt.errors.OutOfMemory as error:
            told = str(error)
            assert "no room for it" in told and "# the line that fails" in told, told

def made(kind="f4", signal="rows"):
    with gt.signal(signal):
        x = gt.from_numpy(np.ones((4, 4), kind))
        return x.exp()  # the line that fails

with gt.signal("copies"):
    w = gt.ones(4, 4)
for dtype in ("f4", "f8"):
    y = made(dtype)
    total = y.sum(axis=0)
    whole = gt.signal.tensor(total, name="copies")         # all_reduce
    bad([whole * 2, (whole * 2).sum(), whole, total, whole > 1, (whole > 1).long()], "all_reduce")
    copy = gt.signal.tensor(y, name="copies")              # all_gather
    bad([copy + 1, copy, copy[0, 0]], "all_gather")
    across = gt.signal.tensor(y, name="columns")           # exchange
    bad([across + 1, across], "exchange")
    piece = gt.signal.tensor(y.T @ y, name="rows")         # reduce_scatter
    bad([piece + 1, piece], "reduce_scatter")
    many = gt.signal.tensor(made(dtype, "second"), name="copies")  # broadcast or exchange from the one that fails
    bad([many + 1, many], "broadcast")
fine = gt.signal.tensor(w.sum(axis=0), name="copies")
assert (fine * 2).tolist() == [8.0] * 4
with gt.signal("rows"):
    z = gt.ones(4, 4)
print(z.sum().item(), "fine", flush=True)

for step in range(6):                                      # a repeated step, with collectives inside
    y = made()
    a = gt.signal.tensor(y.sum(axis=0), name="copies") * 2
    b = a + w
    bad([b], "a step")
    c = gt.signal.tensor(z.sum(axis=0), name="copies") * 2
    assert c.tolist() == [8.0] * 4
print("and repeated", flush=True)
"""


def failing(processes: Processes, index: int, port: int, op: str, often: float, **environment: str) -> Process:
    """A worker on which an op fails, always or as often as this."""
    (processes.folder / "failing.py").write_text(FAILING)
    made = processes.start("failing.py", op, str(often), "-p", str(port), **{"GT_VERBOSE": "1", **environment})
    until(lambda: f"is worker {index}" in made.err, what=made.err)
    return made


PAIRS = [(way, backend) for way in WAYS for backend in ("numpy", "pytorch")]
FIRST = [("memory", "numpy"), ("gloo", "pytorch")]  # the others by `make test-all`


@pytest.mark.parametrize("way, backend", [*FIRST, *(pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS if p not in FIRST)])
def test_a_value_that_depends_on_a_failure_of_one_worker_is_an_error_everywhere(
    processes: Processes, backend: str, way: str
) -> None:
    _, port = processes.server("--expect", "2")
    (processes.folder / "script.py").write_text(SCRIPT)
    processes.worker(port, backend=backend, GT_COLLECTIVES=way)
    failing(processes, 1, port, "exp", 1.0, GT_BACKEND=backend, GT_COLLECTIVES=way)
    script = processes.start("script.py", f"localhost:{port}")
    assert script.ended(60) == 0, script.out + script.err[-3000:]
    assert script.out == "16.0 fine\nand repeated\n", script.out + script.err


RANDOM = """
import gc, random, sys
import gt
from gt.config import ShardConfig, SignalConfig
from tests.memory.test_stress import MOVES, program

gt.connect(sys.argv[1])
rng, names, read = random.Random(1), [f"s{i}" for i in range(6)], []
for i in range(24):
    for name in names:
        workers = rng.sample(range(3), rng.randint(1, 3))
        gt.register_config(name, SignalConfig(ShardConfig(rng.randint(0, 1), workers, rng.random() < 0.3)))
    read.append(program(rng, names, 10, (gt.errors.OutOfMemory,)))
gc.collect()  # an error that was raised holds the frames it came through, and with them tensors
stats = gt.debug.get_worker_stats().values()
done = {move: sum(s["ops"].get(move, 0) for s in stats) for move in MOVES}
assert all(done.values()), done
assert 10 < sum(read) < 90, read  # of 96: some are right, some are errors
assert [s["tensors"] for s in stats] == [0, 0, 0], stats
print("fine")
"""


BY_CHANCE = [("memory", "numpy"), ("gloo", "pytorch"), ("mail", "numpy")]


@pytest.mark.slow
@pytest.mark.parametrize("way, backend", BY_CHANCE)
def test_where_workers_fail_at_random_every_value_is_right_or_an_error(processes: Processes, way: str, backend: str) -> None:
    _, port = processes.server("--expect", "3")
    processes.worker(port, backend=backend, GT_COLLECTIVES=way)
    for i in (1, 2):
        failing(processes, i, port, "relu", 0.1, GT_BACKEND=backend, GT_COLLECTIVES=way)
    script = processes.script(RANDOM, f"localhost:{port}")
    assert script.ended(200) == 0, script.out + script.err[-3000:]
    assert script.out == "fine\n"


PART = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("rows"):
    x = gt.ones(4, 4)
for _ in range(int(sys.argv[2])):
    double = x.sum(axis=0) * 2  # the line that fails
    try:
        print(double.tolist())
    except gt.errors.GTError as error:
        print(type(error).__name__, "# the line that fails" in str(error), flush=True)
"""


@pytest.mark.parametrize("way, error", [("memory", "OSError"), ("gloo", "MemoryError")])
def test_a_worker_without_room_for_its_part_or_for_any_part_spoils_it_and_goes_on(
    processes: Processes, way: str, error: str
) -> None:
    """Its operands are there, but not the memory to add them up. The third and the fourth time it has not even memory to take
    part with nothing to give: all members give the collective up, and go on with another group."""
    (processes.folder / "part.py").write_text(PART)
    _, port = processes.server("--expect", "2")
    processes.worker(port, backend="pytorch", GT_COLLECTIVES=way)
    failing(processes, 1, port, f"part {error}", 1.0, GT_BACKEND="pytorch", GT_COLLECTIVES=way)
    script = processes.start("part.py", f"localhost:{port}", "6")
    assert script.ended(60) == 0, script.out + script.err[-3000:]
    failed = "OutOfMemory True" if error == "MemoryError" else "RemoteError True"
    assert script.out.splitlines() == [str([8.0] * 4), failed, failed, failed, *[str([8.0] * 4)] * 2], script.out


def test_a_worker_that_fails_in_the_midst_of_a_collective_breaks_it_off_for_all_who_go_on(processes: Processes) -> None:
    """Others have begun to read its memory when it finds that it has no room."""
    (processes.folder / "part.py").write_text(PART)
    _, port = processes.server("--expect", "2")
    processes.worker(port, backend="pytorch")
    failing(processes, 1, port, "midst", 1.0, GT_BACKEND="pytorch")
    script = processes.start("part.py", f"localhost:{port}", "4")
    assert script.ended(60) == 0, script.out + script.err[-3000:]
    assert script.out.splitlines() == [str([8.0] * 4), "OutOfMemory True", *[str([8.0] * 4)] * 2], script.out


LATE = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("rows"):
    x = gt.ones(4, 4)
if sys.argv[2] == "known":
    print(x.sum(axis=0).tolist(), flush=True)
else:
    print(x[0, 0].item(), flush=True)
input()
while True:  # the collective that the late one was in is given up, too
    double = x.sum(axis=0) * 2  # the line that fails
    try:
        print(double.tolist(), flush=True)
        break
    except gt.errors.RemoteError as error:
        print(error, flush=True)
"""


LATE_CASES = [("memory", "known"), ("memory", "unknown")]
SLOW_LATE_CASES = [(way, known) for way in WAYS[1:] for known in ("known", "unknown")]


@pytest.mark.parametrize("way, known", [*LATE_CASES, *(pytest.param(*c, marks=pytest.mark.slow) for c in SLOW_LATE_CASES)])
def test_a_collective_that_takes_too_long_is_given_up_names_who_is_missing_and_all_go_on(
    processes: Processes, way: str, known: str
) -> None:
    """Whether the workers know by which way they talk, or one is stopped before it could say."""
    (processes.folder / "late.py").write_text(LATE)
    _, port = processes.server("--expect", "2")
    settings = {"backend": "pytorch", "GT_COLLECTIVES": way, "GT_COLLECTIVE_TIMEOUT": "3"}
    processes.worker(port, "--id", "first", **settings)
    late = processes.worker(port, "--id", "late", **settings)
    script = processes.start("late.py", f"localhost:{port}", known).wait_for("4.0" if known == "known" else "1.0")
    late.kill(signal.SIGSTOP)
    script.go()
    script.wait_for(
        "was given up on worker first (index 0) after 3 s (GT_COLLECTIVE_TIMEOUT): worker late (index 1) did not come"
    )
    late.kill(signal.SIGCONT)
    script.wait_for("[8.0, 8.0, 8.0, 8.0]")
    assert script.out.count("# the line that fails") == script.out.count("did not come") < 20
