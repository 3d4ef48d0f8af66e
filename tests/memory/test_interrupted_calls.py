"""Ctrl-C at each point of a compiled step at which Python looks for signals: no parameter is lost."""

from __future__ import annotations

import signal

import pytest

import gt
from gt.nn import Linear
from gt.testing import cluster

from .interrupting import interrupted_at


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
