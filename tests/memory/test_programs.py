"""`gt.debug.programs()`: the programs of the workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import gt
from gt.client.scope import HERE
from gt.testing import cluster
from gt.worker.programs.listing import listed
from gt.worker.programs.units import Units

pytestmark = pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE")  # a test of their effect


def here(text: str) -> str:
    """The line of this file with this text, as programs name it."""
    lines = Path(__file__).read_text().splitlines()
    return f"{Path(__file__).name}:{next(i for i, line in enumerate(lines, 1) if text in line and 'here(' not in line)}"


def train(steps: int, x: Any) -> None:
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(4, 4), gt.nn.Tanh(), gt.nn.Linear(4, 1))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = (model(x) ** 2).mean()  # the forward pass
        loss.backward()
        optimizer.step()  # the update
        optimizer.zero_grad()
        loss.item()


def test_a_step_is_shown_before_and_after_each_pass_with_the_lines_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_EARLY", "0")  # a step, not several
    with cluster(1, "pytorch"):
        train(8, gt.ones(3, 4))
        [step] = gt.debug.programs()
        assert step.source == "trace" and step.calls > 0 and list(step.stages)[:2] == ["as received", "updates fused"]
        before, after = list(step.stages.values())[:2]  # GT_AUTO_COMPILE adds the compiled form
        assert re.search(rf"tanh\(\w+\)  # float32\[3, 4\], frees \w+, {here('# the forward pass')}", before)
        assert before.count(" adam(") == after.count(" adam(") == 4 and "4 adam in one call" in after
        assert here("# the update") in before and "together:" not in before
        assert str(step).startswith(f"trace {step.number} on w0, called {step.calls} times")


def test_arithmetic_is_shown_as_it_is_written_in_place_and_for_numpy() -> None:
    with cluster(1, "pytorch"):
        x = gt.ones(4, dtype=gt.float64)
        for _ in range(8):
            ((x * 2.0 + 1.0) * x - 0.5).abs().sqrt().numpy()
        stages = [p.stages for p in gt.debug.programs()]
        assert any("in place" in stages.get("written in place", "") for stages in stages)


def test_a_sharded_trace_is_shown_for_each_worker_with_its_segments() -> None:
    with cluster(2, "numpy"):
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        with gt.signal.context("rows"):
            x = gt.ones(4, 4)
        for _ in range(8):
            y = (x * 2.0 + 1.0).exp().tanh() - 0.5  # in pieces
            ((y.sum(0) + x) * 0.5).tanh().numpy()
        found = gt.debug.programs()
        assert {p.worker for p in found if p.source == "sharded trace"} == {"w0", "w1"}
        assert {p.source for p in found} <= {"sharded trace", "segment", "trace"}
        assert any("exp(" in text and here("# in pieces") in text for p in found for text in p.stages.values())


def test_units_are_shown_too() -> None:
    with cluster(1, "numpy") as c:
        HERE.scope.session.tracer = None
        c.workers[0].units = Units(3)
        x = gt.ones(2)
        c.settle()
        for _ in range(4):
            x = (x * 2.0 + 1.0).exp() * 0.0
        c.settle()
        assert {p.source for p in gt.debug.programs()} == {"unit"}


def test_a_worker_tells_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(1, "numpy") as c:
        for n in (5, 7, 9):
            x = gt.ones(n)
            for _ in range(6):
                (((x * 0.5).exp() + 1.0) * x - 2.0).numpy()
        c.settle()
        known = [ready for _, _, ready in c.workers[0].spaces["c0"].kinds.values()]
        whole = listed(known)
        assert len(whole["programs"]) > 1 and whole["left_out"] == 0
        monkeypatch.setattr("gt.worker.programs.listing.MAX_CHARACTERS", 1)
        assert listed(known) == {"programs": whole["programs"][-1:], "left_out": len(whole["programs"]) - 1}
