"""`compile: true` on sharded programs: it is obeyed, with and without the instruction log, or the user gets the reason."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt.config import ShardConfig, SignalConfig
from gt.testing import Cluster, cluster
from gt.watch.log import InstructionLog
from gt.watch.log_file import prepared
from gt.worker.engine.torch import inductor

pytestmark = [
    pytest.mark.default("GT_TRACE", "GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE"),
    pytest.mark.filterwarnings("ignore"),  # of the compiler's own
]
STEPS = 12


def train(made: Cluster, compile: bool = True) -> list[float]:
    """Losses of a small regression on a batch that is cut into pieces."""
    gt.register_config("rows", SignalConfig(ShardConfig(axis=0), compile=compile))
    gt.register_config("copies", SignalConfig(ShardConfig(replicated=True)))
    gt.manual_seed(0)
    with gt.signal.context("copies"):
        first, second = gt.nn.Linear(6, 8), gt.nn.Linear(8, 4)
    optimizer = gt.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    with gt.signal.context("rows"):
        x, y = gt.randn(8, 6), gt.randn(8, 4)
    losses = []
    for _ in range(STEPS):
        with gt.signal.context("rows"):
            loss = ((second(first(x).tanh()) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        join(made)
    return losses


def compilers(made: Cluster) -> Iterator[inductor.Inductor]:
    for worker in made.workers:
        for space in worker.spaces.values():
            for _, _, ready in list(space.kinds.values()):
                if isinstance(getattr(ready, "faster", None), inductor.Inductor):
                    yield ready.faster


def join(made: Cluster) -> None:
    """Wait until nothing is being compiled."""
    for compiler in compilers(made):
        if compiler.thread is not None:
            compiler.thread.join(80)


def count(made: Cluster, name: str) -> list[float]:
    made.settle()
    return [w.stats()["traces"].get(name, 0) for w in made.workers]


def run(engine: str, log: bool = False, device: str = "cpu") -> tuple[list[float], dict[str, list[float]], str]:
    """Losses, the statistics of the two workers, and the log."""
    with cluster(2, engine) as made:
        out = io.StringIO()
        if log:
            written = InstructionLog()

            def see(event: str, who: str, what: object) -> None:
                for at, line in written.lines(time.time(), event, who, prepared(event, what)[0]):
                    out.write(f"{at} {line}\n")

            observers = made.dispatcher.observers
            observers.local, observers.on, observers.sends = see, True, True
            for mail in observers.send_levels():
                made.hub.post("dispatcher", mail)
            made.hub.deliver()
        for worker in made.workers:
            worker.engine.clock, worker.engine.device = time.perf_counter, device
        losses = train(made)
        names = ("sharded_calls", "sharded_collectives", "compiled_calls", "fallbacks")
        return losses, {name: count(made, name) for name in names}, out.getvalue()


def test_the_log_changes_neither_compilation_nor_sharded_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        inductor, "build", lambda function, samples: function
    )  # the number of compiled programs matters here, not their speed
    run("numpy")  # the first program of a process frees its tensors at other places
    plain, counts, _ = run("pytorch")
    logged, counts_logged, lines = run("pytorch", log=True)
    assert min(counts["sharded_calls"]) >= 5 and min(counts["compiled_calls"]) > 0, counts
    assert counts_logged == counts
    assert logged == plain
    sent = [line.split("| ") for line in lines.splitlines() if "WORKER_SEND" in line]
    ended = [float(line.split()[0]) for line in lines.splitlines() if "WORKER_RECV" in line]
    assert len(ended) == len(sent) and len(set(ended)) > len(ended) / 20, "each worker reports the time of each instruction"
    for worker in ("w0", "w1"):
        ops = [details.split()[0] for _, who, _, details in sent if who.strip() == worker]
        assert ops.count("op=tanh") == STEPS, ops  # each step's, though they come as one call
        assert ops.count("op=all_reduce") >= counts["sharded_collectives"][0] / 2, ops


def test_programs_between_collectives_are_compiled_on_devices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "build", lambda function, samples: function)
    losses, counts, _ = run("pytorch", device="cuda:0 in name only")
    assert min(counts["sharded_calls"]) >= 5 and min(counts["compiled_calls"]) > 0 and not any(counts["fallbacks"]), counts
    np.testing.assert_allclose(losses, run("numpy")[0], rtol=1e-5)


def test_an_engine_that_compiles_nothing_warns() -> None:
    with pytest.warns(UserWarning, match="compile: true is not obeyed: the numpy engine compiles nothing"):
        _, counts, _ = run("numpy")
    assert min(counts["fallbacks"]) >= 1, counts


def test_why_it_is_not_obeyed_stands_in_the_statistics() -> None:
    with cluster(2) as made:
        train(made)
        reasons = [w.stats()["traces"] for w in made.workers]
        replay = [s["replay"]["fallbacks"] for s in gt.debug.get_worker_stats().values()]
    for reason, told in zip(reasons, replay):
        assert reason["fallback: the numpy engine compiles nothing"] == told["the numpy engine compiles nothing"] >= 1


@pytest.mark.filterwarnings("error")
def test_who_does_not_ask_is_not_warned() -> None:
    with cluster(2) as made:
        train(made, compile=False)
        assert count(made, "fallbacks") == [0, 0]
