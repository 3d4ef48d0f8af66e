"""`gt top`, driven by Textual's pilot: it shows the executed ops, its keys work, and it fits 80 columns."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from gt.transport import events as e
from gt.watch.metrics import text
from gt.watch.model import REPORT_DELAY, WINDOW, Model, WorkerView

pytest.importorskip("textual")
from gt.watch.top import Top, bar, legend  # noqa: E402

NOW = 1000.0
MEANINGS = (e.Meaning(1, "matmul", "matmul"), e.Meaning(2, "exp", "elementwise"), e.Meaning(3, "all_reduce", "collective"))


def spans(worker: str, client: str, rows: list[tuple[int, float, float]]) -> e.Spans:
    numbers, starts, seconds = zip(*rows)
    columns = (array("q", numbers), array("q", [5] * len(rows)), array("d", starts), array("f", seconds))
    return e.Spans(client, *(c.tobytes() for c in columns), meanings=MEANINGS, worker=worker)


@pytest.fixture
def model() -> Model:
    """Two workers over three seconds: the first multiplies for half of them and does exps for a sixth, the second sleeps."""
    made, begin = Model(), NOW - REPORT_DELAY - WINDOW
    state = e.State(NOW, 2.0, 1.0, 17, 3 << 30, 16 << 30, 12, 0.9, "matmul", 2.5, 'File "kernel.py", line 7\n', "w0")
    made.first = begin
    events: list[Any] = [
        e.Joined("w0", begin, 0, "numpy on cpu, here"), e.Joined("w1", begin, 1, "numpy on cpu, there"),
        e.Joined("here:1", begin), e.Joined("here:2", begin),
        spans("w0", "here:1", [(1, begin, 1.5)]), spans("w0", "here:2", [(2, begin + 1.5, 0.5)]),
        state, e.State(NOW, 0.0, 3.0, 0, 1 << 20, 16 << 30, 0, worker="w1"),
        e.Traced("here:1", NOW, 2, 30, 500, (("diverged", 10, "train.py:3"),)), e.Received("here:1", 1, begin, 42),
    ]  # fmt: skip
    made.add(e.Watched(1, tuple(events)))
    return made


def drive(model: Model, test: Callable[[Top, Any], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        app = Top(["localhost:9000"], model=model, clock=lambda: NOW)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await test(app, pilot)

    asyncio.run(run())


def shown(app: Top, name: str) -> str:
    return str(app.query_one(f"#{name}").render())


def test_shares_are_those_of_the_executed_ops_and_a_sleeping_worker_is_idle(model: Model) -> None:
    model.refresh(NOW)
    first, second = model.connected_workers()
    assert {g: round(s, 3) for g, s in first.shares.items()} == {"matmul": 0.5, "elementwise": 0.167, "idle": 0.333}
    assert second.shares == {"idle": 1.0}
    assert {c.label: c.share for c in model.connected_clients()} == {"here:1": 0.75, "here:2": 0.25}
    assert model.clients["here:1"].hit_rate == 0.75


def test_drawing_before_the_screen_opens_or_after_it_closes_goes_nowhere(model: Model) -> None:
    kept: list[Top] = []

    async def look(app: Top, pilot: Any) -> None:
        kept.append(app)
        await app.query_one("#head").remove()
        app.redraw()

    Top(["localhost:9000"], model=model, clock=lambda: NOW).redraw()
    drive(model, look)
    kept[0].redraw()


def test_unused_ops_of_a_program_are_not_counted(model: Model) -> None:
    before = model.workers["w1"].instructions
    ops = (("matmul", "matmul", 0.0, ""), ("exp", "elementwise", 1.0, ""))
    call = spans("w1", "here:1", [(4, NOW, 0.5)])
    call = structs.replace(call, meanings=(e.Meaning(4, "a trace of 2 ops", "program", ops=ops, source="trace"),))
    model.add(e.Watched(2, (call,)))
    assert model.workers["w1"].instructions == before + 1 and model.workers["w1"].seconds["elementwise"] == 0.5


def test_shares_are_smoothed(model: Model) -> None:
    model.refresh(NOW)
    model.refresh(NOW + 100)
    assert model.workers["w0"].shares["matmul"] == pytest.approx(0.5 * 0.6)


def test_a_bar_has_as_many_columns_of_a_group_as_its_share() -> None:
    drawn = bar({"matmul": 0.5, "exp": 0.25, "idle": 0.25}, 20)
    assert drawn.plain == "█" * 15 + "░" * 5 and [s.end - s.start for s in drawn.spans] == [10, 5, 5]


def test_the_legend_breaks_between_groups_and_leaves_out_those_without_a_share() -> None:
    groups = ("matmul", "elementwise", "reduce", "collective", "movement")
    view = WorkerView("w0", shares={**dict.fromkeys(groups, 0.19), "create": 0.004, "idle": 0.046})
    lines = str(legend([view], 40)).splitlines()
    assert all(len(line) <= 42 for line in lines), "but for the spaces at its end"
    assert " ".join(lines).split() == [word for g in groups for word in ("■", g, "19%")] + ["■", "idle", "5%"]


def test_it_shows_workers_clients_and_their_figures_within_80_columns(model: Model) -> None:
    async def test(app: Top, pilot: Any) -> None:
        workers = shown(app, "workers").splitlines()
        assert len(workers) == 2 and all(len(line) <= 80 for line in workers), workers
        assert "w0" in workers[0] and " 67%" in workers[0] and "17" in workers[0] and "3.0 GB" in workers[0]
        assert "gpu  90%" in workers[0] and "0%" in workers[1] and "█" not in workers[1]
        assert "matmul 25%" in shown(app, "legend") and "idle 67%" in shown(app, "legend")
        clients = shown(app, "clients").splitlines()
        assert "75%" in clients[1] and "here:1" in clients[1] and "42" in clients[1] and all(len(c) <= 80 for c in clients)

    drive(model, test)


def test_keys_sort_pause_filter_and_show_the_stack_of_a_stuck_worker(model: Model) -> None:
    async def test(app: Top, pilot: Any) -> None:
        await pilot.press("enter")
        details = shown(app, "details")
        assert "executes matmul for 2.5 s" in details and "kernel.py" in details and "12 tensors" in details
        await pilot.press("down")
        assert "w1: numpy on cpu, there" in shown(app, "details")
        await pilot.press("f")
        assert "client here:1" in shown(app, "head") and "elementwise" not in shown(app, "legend")
        await pilot.press("f", "f")
        assert "client" not in shown(app, "head").replace("clients", "") and "elementwise" in shown(app, "legend")
        await pilot.press("s")
        assert app.sort_by == "busy" and [w.name for w in app.views()] == ["w0", "w1"]
        app.model.workers["w1"].shares = {"matmul": 1.0}
        assert [w.name for w in app.views()] == ["w1", "w0"]
        await pilot.press("p")
        assert "PAUSED" in shown(app, "head")
        model.add(e.Watched(2, (e.Joined("w2", NOW, 2),)))
        app.redraw()
        assert "w2" not in shown(app, "workers")
        await pilot.press("space")
        app.redraw()
        assert "w2" in shown(app, "workers")

    drive(model, test, (120, 40))


def test_the_same_figures_are_metrics(model: Model) -> None:
    lines = text(model).splitlines()
    assert 'gt_worker_group_seconds_total{worker="w0",group="matmul"} 1.5' in lines
    assert 'gt_worker_queue_instructions{worker="w0"} 17' in lines and "gt_workers 2" in lines
    assert 'gt_client_trace_hits_total{client="here:1"} 30' in lines
    assert all(line.startswith(("# HELP gt_", "# TYPE gt_", "gt_")) for line in lines)
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(names)) == len(names)
