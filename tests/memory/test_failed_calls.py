"""A call of a trace of which one instruction fails: as without replay, only its results and their dependents are errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import gt
from gt.client.scope import HERE
from gt.errors import RemoteError
from gt.testing import cluster
from gt.worker.engine.torch.engine import TorchEngine

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect
MB = 1 << 20
HUGE = 1 << 47  # elements: more bytes than there are addresses
Step = Callable[[gt.Tensor, gt.Tensor], tuple[gt.Tensor, ...]]


def found(tensor: gt.Tensor) -> Any:
    """The value, or the error and the line of this file that it names."""
    try:
        return tensor.flatten()[:3].tolist()
    except RemoteError as error:
        return type(error).__name__, re.findall(r"test_failed_calls.py.*line (\d+)", str(error))


def over_the_quota(x: gt.Tensor, lost: gt.Tensor) -> tuple[gt.Tensor, ...]:
    first = x * 0.5 + 1.0
    large = gt.ones(512, 1024)
    return first, first - 3.0, large, large[0] + 1.0, (first * 2.0).sum()


def without_room(x: gt.Tensor, lost: gt.Tensor) -> tuple[gt.Tensor, ...]:
    first = x * 0.5 + 1.0
    second = first.exp().sqrt() + 1.0
    huge = second[0] * gt.ones(HUGE)
    return second, huge, huge[0] + 1.0, (second * 2.0 - 1.0) * first


def with_a_lost_input(x: gt.Tensor, lost: gt.Tensor) -> tuple[gt.Tensor, ...]:
    first = x * 0.5 + 1.0
    second = lost * first
    return first, second, second + 1.0, first.exp() + 1.0


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
@pytest.mark.parametrize("step", [over_the_quota, without_room, with_a_lost_input])
def test_only_values_that_depend_on_a_failure_fail_with_replay_as_without(step: Step, engine: str) -> None:
    def rounds(replay: bool) -> tuple[list[Any], Any]:
        with cluster(1, engine, memory=MB if step is over_the_quota else 0) as made:
            if not replay:
                HERE.scope.session.tracer = None
            x, lost = gt.ones(6), gt.ones(HUGE)[:6]
            read = []
            for _ in range(6):
                results = step(x, lost)
                x = results[0]
                read.append([found(t) for t in results])
            return read, made.sessions[0].tracer

    (replayed, tracer), (eager, _) = rounds(True), rounds(False)
    assert tracer.stats()["trace_hits"] >= 3, tracer.stats()
    assert replayed == eager
    assert [type(r) for r in eager[-1]].count(tuple) == 2 and all(e[1] for e in eager[-1] if type(e) is tuple)


def test_an_instruction_that_failed_after_it_overwrote_its_operand_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def over(engine: Any, kind: Any) -> Callable | None:
        def spoil(array: Any) -> None:
            array.zero_()
            raise MemoryError("no room for a buffer")

        return spoil if kind.row.name == "sin" else kept(engine, kind)

    kept = TorchEngine.over
    monkeypatch.setattr(TorchEngine, "over", over)
    with cluster(1, "pytorch") as made:
        x = gt.ones(6)
        for _ in range(6):
            lost = (x + 3.0).sin() + 1.0
            x = x * 0.5 + 1.0
            read = found(lost), found(x)
        assert made.sessions[0].tracer.stats()["trace_hits"] >= 2
    assert read[0][0] == "OutOfMemory" and read[1] == [1.984375] * 3
