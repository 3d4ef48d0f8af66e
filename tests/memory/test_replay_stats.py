"""Statistics of replay: traces found, hits, misses with their lines, compiled forms, fallbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.scope import HERE
from gt.testing import cluster
from gt.worker.engine.torch import inductor

from .compiling import arithmetic, compiling, loop

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


def replay() -> dict[str, Any]:
    [stats] = gt.debug.get_worker_stats().values()
    return stats["replay"]


def test_hits_calls_and_savings_are_counted() -> None:
    with cluster(1, "numpy"):
        x = gt.ones(3, 3)
        for _ in range(10):
            arithmetic(x, 0.5).numpy()
        found = replay()
        assert found["traces_found"] == 1 and found["hits"] == found["calls"] == 7
        assert found["launches_saved"] == found["instructions_saved"] == 7 * 7  # its eight ops are one
        assert found["misses"] == {} and found["fallbacks"] == {} and found["compiled_executions"] == 0


def other(x: Any) -> Any:
    return ((x * 2.0 + 0.5).tanh() @ x.T + 0.5).exp() * 0.5  # where it differs


@pytest.mark.parametrize(
    "why, text", [("diverged", "# where it differs"), ("a value was read", "read in the middle"), ("a number changed", "0.75")]
)
def test_a_miss_names_the_line_of_the_op_that_differed(why: str, text: str) -> None:
    with cluster(1, "numpy"):
        x = gt.ones(3, 3)
        for i in range(12):
            if i == 10 and why == "diverged":
                other(x).numpy()
            elif i == 10 and why == "a value was read":
                (x * 2.0 + 0.5).tanh().numpy()  # read in the middle
            elif i == 10:
                y = (x * 2.0 + 0.5).tanh() @ x.T
                z = (y + 0.75).relu() * 0.5
                del y
                z.numpy()
            else:
                arithmetic(x, 0.5).numpy()
        found = replay()
        assert found["misses"][why] >= 1, found
        assert text in found["miss_lines"][why], found


def test_fallbacks_and_compiled_executions_are_told_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("GT_AUTO_COMPILE", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def only_small(function: Any, samples: list) -> Any:
        if len(samples[0]) > 3:
            raise ValueError("too large")
        return function

    monkeypatch.setattr(inductor, "build", only_small)
    with compiling() as c:
        sizes = [gt.ones(3, 3), gt.ones(4, 4)]
        values = loop(c, lambda i: arithmetic(sizes[i % 2], 0.5)[0, 0], 24, wait=16)
        found = replay()
        assert found["fallbacks"] == {"torch.compile: ValueError: too large": 1}
        assert found["compiled"] == 1 and found["compiled_executions"] >= 4 and found["compile_seconds"] > 0
        gt.debug.print_worker_stats()
    np.testing.assert_allclose(values[::2], values[0], rtol=1e-6)
    printed = capsys.readouterr().out
    assert "too large" in printed and "compiled executions" in printed
    assert "sharded calls" not in printed and "numpy calls" not in printed, "what did not happen has no row"


def test_without_tracing_there_is_nothing_to_tell() -> None:
    with cluster(1, "numpy"):
        HERE.scope.session.tracer = None
        gt.ones(2).numpy()
        assert replay()["hits"] == 0 and replay()["misses"] == {}
