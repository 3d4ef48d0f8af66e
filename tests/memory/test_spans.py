"""Times recorded by workers: off by default, bounded, separate for each client, and drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.config import ShardConfig, SignalConfig
from gt.testing import cluster
from gt.watch.timeline import Span, Timeline, common, merged

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect


def test_ops_and_collectives_are_recorded_with_their_signals():
    with cluster(2):
        gt.register_config("rows", SignalConfig(ShardConfig(axis=0)))
        with gt.debug.record() as timeline:
            with gt.signal("rows"):
                total = gt.ones(4, 4).exp().sum(axis=0)
            total.numpy()
        for worker in (0, 1):
            mine = [s for s in timeline.spans if s.worker == worker]
            assert [s.name for s in mine] == ["full", "exp", "sum", "all_reduce"]
            assert [s.collective for s in mine] == [False, False, False, True]
            assert [s.signal for s in mine[:3]] == ["rows"] * 3
            assert all(0 <= s.start <= s.stop for s in mine)
            assert all(a.stop <= b.start for a, b in zip(mine, mine[1:])), "one thing after another"


def test_a_call_of_a_trace_is_one_span():
    with cluster(1) as made:
        x = gt.ones(3, 3)

        def step():
            ((x * 2.0 + 0.5).tanh() @ x + 0.5).exp().numpy()

        for _ in range(4):
            step()
        with gt.debug.record() as timeline:
            step()
        assert [s.name for s in timeline.spans] == ["a trace of 6 ops"], made.workers[0].stats()["traces"]


def test_nothing_is_recorded_unless_asked_and_not_for_others():
    with cluster(1) as made:
        mine = HERE.scope
        with gt.debug.record() as timeline:
            HERE.scope = Scope(made.session())
            other = gt.ones(2) + 1
            other.numpy()
            HERE.scope = mine
            (gt.ones(2) * 3).numpy()
        assert [s.name for s in timeline.spans] == ["full", "mul"]
        gt.ones(2).exp().numpy()
        assert made.workers[0].recorder is None


def test_a_recording_within_another_leaves_both_whole():
    with cluster(1):
        x = gt.ones(2)
        with gt.debug.record() as whole:
            x.exp().numpy()
            with gt.debug.record() as part:
                x.log().numpy()
            x.sin().numpy()
        assert [s.name for s in part.spans] == ["log"]
        assert [s.name for s in whole.spans] == ["exp", "log", "sin"]


def test_only_the_last_are_kept():
    with cluster(1):
        x = gt.ones(2)
        with gt.debug.record(keep=3) as timeline:
            x.exp().log().sin().cos().numpy()
        assert [s.name for s in timeline.spans] == ["log", "sin", "cos"]
        with pytest.raises(gt.errors.GTError, match="cannot keep 0 times"), gt.debug.record(keep=0):
            pass


def test_an_error_inside_ends_the_recording():
    with cluster(1) as made:
        with pytest.raises(ZeroDivisionError), gt.debug.record():
            gt.ones(2).numpy()
            raise ZeroDivisionError
        made.settle()
        assert made.workers[0].recorder is None


def test_intervals_are_merged_and_compared():
    assert merged([(3, 4), (0, 1), (0.5, 2)]) == [(0, 2), (3, 4)]
    assert common([(0, 2), (3, 4)], [(1, 3.5)]) == 1.5 and common([(0, 1)], [(1, 2)]) == 0


def test_a_picture_has_a_lane_for_each_worker_and_names_the_ops(tmp_path):
    spans = [Span(0, "matmul", "a<b", 0.0, 0.25, False), Span(1, "all_reduce", "", 0.25, 0.5, True)]
    Timeline(spans).draw(tmp_path / "p.svg", "Title & more")
    root = ElementTree.fromstring((tmp_path / "p.svg").read_text())
    said = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Title & more", "worker 0", "worker 1", "a<b", "all_reduce", "500"} <= set(said)
    bars = [e for e in root.iter() if len(e) and e.tag.endswith("rect")]
    assert [b[0].text for b in bars] == ["matmul: 250.00 ms", "all_reduce: 250.00 ms"]
    assert float(bars[1].get("x")) > float(bars[0].get("x")) + float(bars[0].get("width")) - 1
    Timeline().draw(tmp_path / "empty.svg")
