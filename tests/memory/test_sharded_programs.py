"""Steps that repeat on several workers: planned once, then one call for each worker, with the same numbers, errors and
frees."""

from __future__ import annotations

import gc
import random
from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest

import gt
from gt.config import ShardConfig, SignalConfig
from gt.nn import SGD, Linear, Module
from gt.optim import Adam
from gt.program.code import FREE
from gt.testing import cluster
from gt.transport.messages import Run
from gt.worker.cancel import Parked
from gt.worker.collectives.mail import MailCollectives
from gt.worker.programs.group_recordings import NOT_NOW
from gt.worker.programs.sharded import RefusedShare, ShardedTrace
from tests.memory.collecting import collect

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


class Unwilling:
    """A recording that its worker never makes."""

    def wish(self, call: tuple) -> int:
        return NOT_NOW

    def stats(self) -> dict[str, float]:
        return {}


SIGNALS = {
    "batch": SignalConfig(ShardConfig(axis=0)),
    "copies": SignalConfig(ShardConfig(replicated=True)),
    "columns": SignalConfig(ShardConfig(axis=1)),
    "stage_1": SignalConfig(ShardConfig(workers=[0])),
    "stage_2": SignalConfig(ShardConfig(workers=[1])),
}


class MLP(Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(12, 16), Linear(16, 5)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


def configure() -> None:
    for name, config in SIGNALS.items():
        gt.register_config(name, config)


def train(parameters: str, batch: str, optimizer, steps: int = 10) -> tuple[list[float], list]:
    """Losses with a learning rate that changes every step, all tensors made here."""
    configure()
    gt.manual_seed(0)
    with gt.signal.context(parameters):
        model = MLP()
    opt = optimizer(model.parameters(), lr=0.05)
    with gt.signal.context(batch):
        x, y = gt.randn(10, 12), gt.randn(10, 5)
    losses = []
    for i in range(steps):
        opt.param_groups[0]["lr"] = 0.05 / (i + 1)
        with gt.signal.context(batch):
            loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return losses, [p.numpy() for p in model.parameters()]


def trace_counts(made) -> list[Counter]:
    return [Counter(w.stats()["traces"]) for w in made.workers]


@pytest.mark.parametrize("optimizer", [SGD, Adam])
@pytest.mark.parametrize("parameters", ["copies", "batch", "columns"])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_step_is_planned_once_and_gives_one_worker_s_numbers(workers, parameters, optimizer):
    with cluster(1):
        want, weights = train("copies", "batch", optimizer)
    with cluster(workers) as made:
        losses, found = train(parameters, "batch", optimizer)
        np.testing.assert_allclose(losses, want, rtol=2e-5)
        for a, b in zip(found, weights):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        for worker in trace_counts(made):
            assert worker["sharded_calls"] >= 5 and worker["sharded_collectives"] >= worker["sharded_calls"], worker


def steady(made, monkeypatch) -> list[int]:
    """From here on: how many instructions each message to a worker has, frees left out."""
    seen: list[int] = []
    handle = made.dispatcher.handle

    def watched(mail):
        out = handle(mail)
        seen.extend(sum(ins[0] != FREE for ins in m.message.code) for m in out if isinstance(m.message, Run) and m.message.code)
        return out

    monkeypatch.setitem(made.hub.parties, "dispatcher", watched)
    return seen


def trained(optimizer_of):
    """A model copied to all workers, and a step of it on a batch that is cut."""
    configure()
    with gt.signal("copies"):
        model = MLP()
    opt = optimizer_of(model.parameters(), lr=0.05)
    with gt.signal("batch"):
        x = gt.randn(8, 12)

    def step():
        with gt.signal("batch"):
            loss = (model(x) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.item()

    return model, step


def test_a_steady_step_is_one_instruction_for_each_worker(monkeypatch):
    with cluster(4) as made:
        _, step = trained(SGD)
        for _ in range(6):
            step()
        seen = steady(made, monkeypatch)
        before = [w.stats()["ops"] for w in made.workers]
        for _ in range(5):
            step()
        assert 20 <= len(seen) <= 40 and max(seen) <= 2 and sum(seen) <= 40, seen
        for worker, was in zip(made.workers, before):
            done = Counter(worker.stats()["ops"]) - Counter(was)
            assert done["sgd"] == 20 and done["relu"] == 5 and done["all_reduce"] >= 10, done


def test_updates_are_written_over_dying_values_and_nothing_that_is_seen_changes():
    """An array read from a parameter before a step is the same after it, and views of the parameter follow, as PyTorch's do."""
    with cluster(2, engine="pytorch") as made:
        model, step = trained(Adam)
        made.settle()
        table = made.workers[0].spaces["c0"].table
        where: list[set[int]] = []
        for _ in range(6):
            step()
            made.settle()
            where.append({a.data_ptr() for a in table.values() if tuple(a.shape) == (16, 12)})
        assert where[-1] == where[-2], "a step writes where its parameters and their state lie"
        calls = trace_counts(made)[0]["sharded_calls"]
        for _ in range(4):
            weight = model.fc1.weight.detach()
            views = [weight.T, weight[1:3], weight.reshape(-1)]  # they share memory with the value that the step replaces
            read, before = weight.numpy(), [v.numpy() for v in views]
            whole, copies = read.copy(), [b.copy() for b in before]
            del weight
            step()
            assert (read == whole).all()
            assert all((b == c).all() for b, c in zip(before, copies))
        # A view that was not used since holds the value the step replaces, which is another program: found in two steps.
        assert trace_counts(made)[0]["sharded_calls"] == calls + 2
        after = model.fc1.weight.detach().numpy()
        assert (after != whole).any()
        for view, now in zip(views, (after.T, after[1:3], after.reshape(-1))):
            np.testing.assert_array_equal(view.numpy(), now)
        del view, views


def test_a_pipeline_s_step_is_one_call_for_each_stage():
    def step(first, second, batches, staged):
        total = 0.0
        for x in batches:
            with gt.signal.context("stage_1") if staged else nullcontext():
                h = first(x).relu()
            with gt.signal.context("stage_2") if staged else nullcontext():
                total = (second(h) ** 2).mean() + total
        total.backward()
        return total

    found = {}
    for workers in (1, 2):
        with cluster(workers) as made:
            configure()
            gt.manual_seed(1)
            with gt.signal("stage_1"):
                first, batches = Linear(12, 16), [gt.randn(4, 12) for _ in range(3)]
            with gt.signal("stage_2") if workers == 2 else nullcontext():
                second = Linear(16, 5)
            opt = SGD([*first.parameters(), *second.parameters()], lr=0.1)
            found[workers] = []
            for _ in range(8):
                total = step(first, second, batches, workers == 2)
                opt.step()
                opt.zero_grad()
                found[workers].append(total.item())
            if workers == 2:
                assert all(c["sharded_calls"] >= 3 for c in trace_counts(made)), trace_counts(made)
    np.testing.assert_allclose(found[1], found[2], rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_that_repeat_give_numpy_s_numbers(seed):
    """The same random ops under the same random signals, again and again: taken apart first, then called."""
    rng = random.Random(seed)
    with cluster(4) as made:
        names = [f"s{i}" for i in range(5)]
        for name in names:
            workers = rng.sample(range(4), rng.randint(1, 4))
            gt.register_config(name, SignalConfig(ShardConfig(rng.randint(0, 1), workers, rng.random() < 0.3)))
        arrays = [np.random.default_rng(i).integers(-3, 4, (5, 6)).astype("f4") for i in range(3)]
        plan = [(rng.choice(names), rng.choice(names), rng.randrange(6), rng.randrange(3), rng.randrange(3), rng.randrange(3))
                for _ in range(12)]  # fmt: skip

        def ops(i, x, y, number, name):
            return [
                lambda: x + y * number,
                lambda: x * y,
                lambda: (x.T @ y).sum(axis=0, keepdims=True) + x,
                lambda: gt.signal.tensor(x, name=name) if name else x,
                lambda: x - (x.amax(axis=0) if name else x.max(axis=0)),
                lambda: x.sum(axis=1, keepdims=True) + y,
            ][i]()

        inputs = []
        for a in arrays:
            with gt.signal.context(rng.choice(names)):
                inputs.append(gt.from_numpy(a))
        for turn in range(6):
            pool, want = list(inputs), list(arrays)
            for signal, other, op, a, b, to in plan:
                with gt.signal.context(signal):
                    t = ops(op, pool[a], pool[b], 0.5 + turn, other)
                    pool[to] = t / (t.abs().amax() + 1.0) * 4.0
                w = ops(op, want[a], want[b], 0.5 + turn, "")
                want[to] = w / (np.abs(w).max() + 1.0) * 4.0
            for t, w in zip(pool, want):
                np.testing.assert_allclose(t.numpy(), w, rtol=1e-3, atol=1e-4)
        assert sum(c["sharded_calls"] + c["calls"] for c in trace_counts(made)) > 0, trace_counts(made)


def test_a_failure_inside_a_call_is_reported_and_nobody_waits():
    """A kernel of one worker fails in the middle of a call: the others are not left waiting in the collectives behind it."""
    with cluster(2) as made:
        configure()
        on: list[str] = []
        engine = made.workers[1].engine
        kernel = engine.kernel

        def failing(kind):
            run = kernel(kind)

            def call(*operands):
                if on and kind.row.name == "tanh":
                    raise ValueError(on[0])
                return run(*operands)

            return call

        engine.kernel = failing
        with gt.signal("batch"):
            x = gt.randn(6, 4)

        def step():
            with gt.signal("batch"):
                h = (x * 2.0 + 1.0).tanh() * 3.0
                return h, (h.sum(axis=0) ** 2 + 1.0).sum()

        for _ in range(6):
            want = step()[1].item()
        assert all(c["sharded_calls"] for c in trace_counts(made)), trace_counts(made)
        on.append("on purpose")
        h, total = step()
        with pytest.raises(gt.errors.RemoteError, match="on purpose") as failed:
            h.numpy()
        assert "test_sharded_programs.py" in str(failed.value), "it names the line"
        with pytest.raises(gt.errors.RemoteError, match="on purpose"):
            total.item()
        on.clear()
        assert step()[1].item() == want


def test_signals_that_change_their_meaning_are_planned_again():
    with cluster(3) as made:
        configure()
        a = np.arange(24, dtype="f4").reshape(6, 4) / 24

        def step():
            with gt.signal("batch"):
                x = gt.from_numpy(a)
                return (x * 2.0 + 1.0).sum(axis=0).exp().log().sum() / 3.0

        for workers in ([0, 1], [2], None, [1, 2]):
            gt.register_config("batch", SignalConfig(ShardConfig(0, workers)))
            for _ in range(5):
                np.testing.assert_allclose(step().item(), (a * 2 + 1).sum() / 3, rtol=1e-5)
        assert sum(c["sharded_calls"] for c in trace_counts(made)) > 0


def test_dropped_programs_are_forgotten_by_workers_too():
    with cluster(2) as made:
        configure()
        with gt.signal("batch"):
            x = gt.randn(4, 4)
        for n in range(40):  # each length is another trace, and only so many are kept

            def step(n=n):
                with gt.signal("batch"):
                    y = x * x.sum(axis=0)
                    for _ in range(5 + n):
                        y = y * 0.5 + 0.25
                    return y.sum().item()

            for _ in range(4):
                step()
        made.settle()
        [client] = made.dispatcher.tables.clients.values()
        kept = {p.number for p in client.plans.values() if hasattr(p, "definitions")}
        for worker in made.workers:
            held = {n for n, (_, _, r) in worker.spaces[client.name].kinds.items() if isinstance(r, ShardedTrace)}
            assert 0 < len(held) < 40 and held <= kept, held - kept


def test_nothing_of_a_collective_that_was_waited_for_is_left_to_the_garbage_collector():
    def step() -> None:
        sums = [gt.signal.tensor(x.sum(axis=0) * i, name="copies") for i in range(3)]  # one wait behind another
        (sums[0] + sums[1] + sums[2]).numpy()

    with cluster(2):
        configure()
        with gt.signal.context("batch"):
            x = gt.ones(4, 3)
        collect()
        gc.disable()
        try:
            for _ in range(10):
                step()
            assert sum(type(o) is Parked for o in gc.get_objects()) == 0
        finally:
            gc.enable()


@pytest.mark.parametrize("recorded", [False, True], ids=["in segments", "asked for a recording"])
@pytest.mark.parametrize("fails", ["kernel", "group_recording"])
def test_a_share_that_one_worker_cannot_prepare_fails_and_nobody_waits(fails, recorded, monkeypatch):
    """Its peers prepared theirs: they get the failure in the place of this worker's pieces, in each call."""
    with cluster(3) as made:
        configure()
        if recorded:
            monkeypatch.setattr(MailCollectives, "records", lambda self, members: True)
            for worker in made.workers:
                monkeypatch.setattr(worker.engine, "group_recording", lambda *_: Unwilling())
        engine = made.workers[1].engine
        before = getattr(engine, fails)

        def failing(*given):
            if fails == "group_recording" or given[0].row.name == "tanh":
                raise MemoryError("no room")
            return before(*given)

        monkeypatch.setattr(engine, fails, failing)
        with gt.signal("batch"):
            x = gt.randn(6, 4)

        def step():
            with gt.signal("batch"):
                h = x * 2.0 + 1.0
                return (h.sum(axis=0) ** 2).sum(), (h.tanh().sum(axis=0) ** 2).sum()

        calls = 0
        for _ in range(9):
            for total in step():
                try:
                    total.item()
                except gt.errors.RemoteError as error:
                    assert "no room" in str(error) or "cannot be prepared on this worker" in str(error)
                    calls += 1
        refused = [r for _, _, r in made.workers[1].spaces["c0"].kinds.values() if isinstance(r, RefusedShare)]
        assert calls > 3 and any(r.calls > 2 for r in refused), (calls, refused)
        for worker in made.workers:
            assert worker.parked is None and not any(worker.collectives.came.values()) and not worker.backlog
            assert not [id for id in worker.spaces["c0"].table if id < 0], "its values local to a call are freed"
        monkeypatch.undo()
        with gt.signal("batch"):
            assert (x * 0.0 + 1.0).sum().item() == 24.0
