"""Traces with collectives as recordings: all workers record and replay together, or none does. Recordings are functions here,
whose sums over workers are computed by one of them, as all shards are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.config import ShardConfig, SignalConfig
from gt.errors import GTError
from gt.nn import SGD, Linear
from gt.testing import cluster
from gt.worker.collectives.mail import MailCollectives
from gt.worker.engine.numpy import NumPyEngine
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.group_recordings import NEVER, NOT_NOW, RECORD, decided
from gt.worker.programs.passes.early_collectives import early_collectives

pytestmark = pytest.mark.default("GT_TRACE")
WORKERS = 2


class Function:
    """A recording that calls kernels; `does` is called with the name of each request, and may raise."""

    def __init__(self, trace: Any, engine: Any, does: Callable[[str], int | None]) -> None:
        self.trace, self.does, self.number, self.done = trace, does, 0, Counter[str]()
        program = early_collectives(trace.program)
        kernels = {n: self._sum if r.kind.row.collective else engine.kernel(r.kind) for n, r in trace.kinds.items()}
        self.function = straight_line(program, KernelTable(kernels))

    @staticmethod
    def _sum(*operands: Any) -> Any:
        made = tuple(x * WORKERS for x in operands[:-1])
        return made[0] if len(made) == 1 else made

    def _note(self, what: str) -> int | None:
        self.done[what] += 1
        return self.does(what)

    def wish(self, call: tuple) -> int:
        asked = self._note("wish")
        return asked if asked is not None else RECORD + self.number

    def prepare(self, call: tuple) -> None:
        self._note("prepare")

    def record(self, call: tuple) -> None:
        self._note("record")
        self.number += 1

    def replay(self, call: tuple) -> list[Any]:
        self._note("replay")
        trace, table = self.trace, self.trace.space.table
        made = self.function([table[i] for i in call[trace.form.inputs]], *call[trace.form.given])
        for i in trace.dies:
            del table[call[i]]
        return list(made)

    def stats(self) -> dict[str, float]:
        return {"collective_graph_calls": self.done["replay"]}


def train(monkeypatch: pytest.MonkeyPatch, *does: Callable[[str], int | None], steps: int = 12) -> tuple[list, list]:
    """Losses of a model that every worker has, on two equal halves of a batch, and the recordings of each worker."""
    made: list[Function] = []

    def group_recording(engine: Any, trace: Any, collectives: Any, group: tuple[int, ...]) -> Function | None:
        if not does:
            return None
        made.append(Function(trace, engine, does[collectives.index]))
        return made[-1]

    monkeypatch.setattr(NumPyEngine, "group_recording", group_recording)
    monkeypatch.setattr(MailCollectives, "records", lambda self, members: True)
    with cluster(WORKERS, "numpy"):
        gt.register_config("batch", SignalConfig(ShardConfig(axis=0)))
        gt.register_config("copies", SignalConfig(ShardConfig(replicated=True)))
        gt.manual_seed(0)
        with gt.signal.context("copies"):
            first, second = Linear(8, 16), Linear(16, 4)
        optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
        rng, losses = np.random.default_rng(0), []
        for i in range(steps):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + i)
            x, y = (np.tile(rng.standard_normal((5, n), np.float32), (WORKERS, 1)) for n in (8, 4))
            with gt.signal.context("batch"):
                loss = ((second(first(gt.from_numpy(x)).relu()) - gt.from_numpy(y)) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, made


def willing(what: str) -> None:
    """Carries out each request."""


def refuses(which: set[int], wish: int) -> Callable[[str], int | None]:
    asked = iter(range(1000))
    return lambda what: wish if what == "wish" and next(asked) in which else None


def test_all_members_follow_the_least_and_the_largest_wish() -> None:
    assert decided(NEVER, RECORD + 3) == NEVER and decided(NOT_NOW, RECORD + 3) == NOT_NOW
    assert decided(RECORD, RECORD + 3) == decided(RECORD + 2, RECORD + 3) == RECORD
    assert decided(RECORD + 3, RECORD + 3) == RECORD + 3


def test_all_record_once_and_replay_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    want, _ = train(monkeypatch)
    losses, made = train(monkeypatch, willing, willing)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    each = [m.done for m in made if m.done["replay"]]
    assert len(each) == WORKERS and each[0] == each[1], each
    assert each[0]["prepare"] == each[0]["record"] == 1 and each[0]["replay"] >= 4, each


@pytest.mark.parametrize("wish, replays", [(NOT_NOW, True), (NEVER, False)])
def test_one_that_cannot_keeps_all_from_it(monkeypatch: pytest.MonkeyPatch, wish: int, replays: bool) -> None:
    want, _ = train(monkeypatch, steps=16)
    losses, made = train(monkeypatch, willing, refuses({0, 4}, wish), steps=16)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    each = [m.done for m in made if m.done["wish"]]
    assert each[0] == each[1] and bool(each[0]["replay"]) is replays, each
    assert replays or each[0]["wish"] == 1, each  # nobody asks again


@pytest.mark.parametrize("failing", ["prepare", "record"])
def test_a_recording_that_fails_on_one_leaves_all_to_the_programs_between(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fails(asked: str) -> int | None:
        failed.append(asked)
        if asked == failing:
            raise RuntimeError("no recording here")
        return NEVER if failing in failed else None

    failed: list[str] = []
    want, _ = train(monkeypatch)
    losses, made = train(monkeypatch, willing, fails)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    assert failing in failed and not any(m.done["replay"] for m in made)


def test_a_replay_that_fails_on_one_fails_for_the_reader_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(asked: str) -> None:
        if asked == "replay":
            raise RuntimeError("the device is full")

    with pytest.raises(GTError, match="failed in a recording: RuntimeError"):
        train(monkeypatch, willing, fails)
