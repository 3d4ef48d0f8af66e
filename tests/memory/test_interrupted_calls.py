"""Ctrl-C at each point of a compiled step at which Python looks for signals: no parameter is lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import gt
from gt.nn import Linear
from gt.testing import cluster


def interrupted_at(point: int, work: Callable[[], Any]) -> bool:
    """Call `work` with Ctrl-C at the n-th start of a function or end of one in C; returns whether there were so many."""
    seen = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return") and "/gt/" in frame.f_code.co_filename:
            seen += 1
            if seen == point:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return seen >= point


@pytest.mark.default("GT_TRACE")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come while a generator ends
def test_an_interrupted_call_of_a_compiled_step_keeps_all_parameters() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
    try:
        with cluster(1, "numpy"):
            model, x = Linear(4, 4), gt.ones(2, 4)
            optimizer = gt.optim.Adam(model.parameters(), lr=0.1)

            @gt.compile
            def step(x: gt.Tensor) -> gt.Tensor:
                optimizer.zero_grad()
                loss = (model(x) ** 2).sum()
                loss.backward()
                optimizer.step()
                return loss.detach()

            for _ in range(6):
                step(x)
            assert step.replays
            point = 1
            while interrupted_at(point, lambda: step(x)):
                assert all(parameter.isfinite().all().item() for parameter in model.parameters()), point
                assert step(x).isfinite().item(), point
                point += 1
            assert point > 50 and step.captures < 5
    finally:
        signal.signal(signal.SIGINT, before)
