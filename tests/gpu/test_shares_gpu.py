"""Clients on one GPU: streams of their own, and values that are each client's own."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.scope import HERE, Scope
from gt.testing import cluster
from gt.worker.engine.torch.client_streams import COPIES, ClientStreams
from gt.worker.engine.torch.graph_numbers import HALF, SLOTS, GraphNumbers

sys.path.insert(0, str(Path(__file__).parents[1] / "socket"))
from processes import Processes  # noqa: E402

pytestmark = pytest.mark.gpu
TRAINER = """
import sys, gt
gt.connect(sys.argv[1], priority=sys.argv[2])
gt.manual_seed(0)
model = gt.nn.Sequential(gt.nn.Linear(256, 1024), gt.nn.ReLU(), gt.nn.Linear(1024, 1))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)
x = gt.randn(256, 256); y = x.sum(1, keepdim=True)
losses = []
for n in range(1500):
    loss = ((model(x) - y) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if n == 20: print("busy", flush=True)
    if n % 100 == 99: losses.append(loss.item())
print("losses", losses, flush=True)
"""
WIDE = TRAINER.replace("gt.nn.Linear(1024, 1))", "*[gt.nn.Linear(1024, 1024) for _ in range(16)], gt.nn.Linear(1024, 1))")
WIDE = WIDE.replace("lr=1e-3", "lr=1e-5")  # larger ones diverge, and then a last bit decides of the whole number


def test_clients_have_streams_of_their_own_and_their_own_values() -> None:
    with cluster(1, "pytorch") as made:
        streams = made.workers[0].streams
        sessions = [made.sessions[0], made.session(), made.session()]
        values = []
        for n, session in enumerate(sessions):
            HERE.scope = Scope(session)
            values.append(gt.full((512, 512), float(n)))
        for _ in range(30):
            for n, session in enumerate(sessions):
                HERE.scope = Scope(session)
                values[n] = (values[n] @ gt.eye(512)) + 1.0
        for n, session in enumerate(sessions):
            HERE.scope = Scope(session)
            assert values[n][3, 4].item() == n + 30.0
        assert len({s.cuda_stream for pair in streams.streams.values() for s in pair}) == 6
        HERE.scope = Scope(sessions[0])


def test_kernels_of_an_interactive_client_go_first_and_both_clients_are_charged() -> None:
    streams, at = ClientStreams(torch.device("cuda")), torch.device("cuda")
    streams.prefer("i")
    large, small = torch.randn(8192, 8192, device=at), torch.randn(512, 512, device=at)

    def timed() -> torch.cuda.Event:
        made = torch.cuda.Event(enable_timing=True)
        made.record(torch.cuda.current_stream())
        return made

    for _ in range(3):  # the first makes the state that libraries keep for each stream
        torch.cuda.synchronize(at)
        events = []
        for client, operand, products in (("n", large, 12), ("i", small, 20)):
            streams.begin(client)
            events.append(timed())
            for _ in range(products):
                operand @ operand
            events.append(timed())
            streams.end(client)
        _, ended, _, interactive_ended = events
        torch.cuda.synchronize(at)
        charged = streams.measured()
    assert streams.streams["n"][0].priority == 0 and streams.streams["i"][0].priority < 0
    assert interactive_ended.elapsed_time(ended) > 0, "launched behind another's, they ended before them"
    assert {client: turns for client, (seconds, turns) in charged.items() if seconds > 0} == {"i": 1, "n": 1}


def test_numbers_of_a_graph_do_not_wait_for_earlier_work_of_its_stream() -> None:
    at, last = torch.device("cuda"), torch.zeros(2, dtype=torch.float64, device="cuda")
    given = GraphNumbers((0.0, 0), at)

    def give(count: int) -> None:
        for n in range(count):
            given.give((1.5 * n + count, n))
            last.add_(torch.stack([given.holes[0], given.holes[1].double()]))

    give(SLOTS)  # CUDA loads kernels when they are first used, and waits for others then
    torch.cuda.synchronize(at)
    last.zero_()
    torch.cuda._sleep(1 << 32)  # seconds
    earlier = torch.cuda.Event()
    earlier.record()
    give(HALF)
    assert not earlier.query(), "they were given while the device had not done what it was given before"
    torch.cuda.synchronize(at)
    assert last.tolist() == [sum(1.5 * n + HALF for n in range(HALF)), sum(range(HALF))]


def test_memory_of_answers_serves_again_and_no_answer_is_written_over() -> None:
    streams, asked, got = ClientStreams(torch.device("cuda")), [], []
    value = torch.zeros(8, device="cuda")

    def answer(host: torch.Tensor) -> list[float]:
        found = host.tolist()
        streams.host_read(host)
        return found

    for n in range(400):
        client = f"c{n % 3}"
        streams.use(client)
        with torch.cuda.stream(streams.pair()[0]):
            if n % 40 == 0:
                torch.cuda._sleep(1 << 22)  # a few milliseconds: answers of others overtake
            host = streams.to_host(torch.full_like(value, float(n)))
        streams.later(client, lambda host=host: answer(host))
        asked.append([float(n)] * 8)
        if n % 5 == 0:
            got += streams.answered()
    torch.cuda.synchronize()
    got += streams.answered()
    assert sorted(got) == asked and not streams.answers
    assert 0 < sum(map(len, streams.hosts.values())) <= COPIES


def test_two_trainers_and_a_reader_share_a_gpu(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        _, port = processes.server()
        processes.worker(port, "--id", "w", backend="pytorch")
        alone = processes.script(TRAINER, f"localhost:{port}", "normal").wait_for("losses").out.splitlines()[-1]
        trainers = [processes.script(TRAINER, f"localhost:{port}", p).wait_for("busy") for p in ("normal", "batch")]
        gt.connect(f"localhost:{port}", priority="interactive")
        reads = 0
        while not all("losses" in t.out for t in trainers):
            assert (gt.full((64, 64), float(reads)) @ gt.eye(64)).sum().item() == 4096.0 * reads
            reads += 1
        shares = gt.debug.clients()
        streams = [share.get("stream_priority", 0) for share in gt.debug.get_worker_stats()["w"]["shares"].values()]
        gt.disconnect()
        assert sorted(p < 0 for p in streams) == [False] * (len(streams) - 1) + [True], "the interactive one's alone goes first"
        assert reads > 20 and any(row["seconds"] > 0 for row in shares) and threading.active_count() < 50
        for trainer in trainers:
            assert trainer.out.splitlines()[-1] == alone, "the numbers are those of a trainer alone"


def test_questions_within_the_calls_of_a_wide_model_are_right_and_change_nothing_of_it(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        _, port = processes.server()
        processes.worker(port, "--id", "w", backend="pytorch")
        alone = _losses(processes.script(WIDE, f"localhost:{port}", "normal").wait_for("losses"))
        trainer = processes.script(WIDE, f"localhost:{port}", "normal").wait_for("busy")
        gt.connect(f"localhost:{port}", priority="interactive")
        tables, reads = [gt.full((64, 64), float(n)) for n in range(3)], 0
        while "losses" not in trainer.out:
            table = tables[reads % 3]
            assert (table @ table + reads).sum().item() == 4096.0 * (64.0 * (reads % 3) ** 2 + reads)
            reads += 1
            time.sleep(0.003)
        within = gt.debug.get_worker_stats()["w"]["short_runs"]
        gt.disconnect()
        assert within > 0, f"of {reads} questions"
        # Its graphs, which round otherwise than the first steps, may be there some steps earlier or later.
        np.testing.assert_allclose(_losses(trainer), alone, rtol=1e-2, atol=1e-3)


def _losses(trainer: Any) -> list[float]:
    """The numbers that a trainer printed at its end."""
    found = [float(word) for word in trainer.out.splitlines()[-1].removeprefix("losses [").rstrip("]").split(",")]
    assert len(found) == 15 and found[-1] < found[0]
    return found
