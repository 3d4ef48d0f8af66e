"""A loop whose result falls short of a rival has a reason."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_line_has_the_reason_where_the_best_rival_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    loops = importlib.import_module("loops")
    result = {"case": "lm", "gt": 2.0, "unit": "ms/step", "rivals": {"eager": 4.0, "reduce-overhead": 1.0}, "why": "it waits"}
    assert loops.line(result).endswith("ratio  2.00   0.50  (it waits)")
    assert loops.line({**result, "why": ""}).endswith("0.50")
    slow = loops.Loop(lambda at: None, why_on_cpu="many small kernels")
    monkeypatch.setattr(loops, "device_seconds", lambda: 0.0)
    assert loops.why(slow, lambda n: [], "cpu", 0.5, 0).endswith("client 0.50, worker 0.00 ms a step: many small kernels")
    assert loops.why(slow, lambda n: [], "cuda", 0.5, 0).endswith("not looked into")
    monkeypatch.setattr(loops, "way_round", lambda: 0.125)
    reading = loops.Loop(lambda at: None, reads=2, why_on_cpu="two reads")
    assert loops.why(reading, lambda n: [], "cpu", 0.5, 0).endswith("a step, 2 x 0.12 ms of waiting for a read: two reads")
