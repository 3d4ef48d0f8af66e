"""Recordings as charts: lanes, bars and arrows match the recording, from captures and from logs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from array import array
from collections.abc import Iterator
from pathlib import Path

import matplotlib.font_manager  # noqa: F401  the first import on a machine lists its fonts, with a thread, which no test may start
import pytest

from gt.errors import GTError
from gt.transport import events as e
from gt.transport.reporting import INTERVALS
from gt.watch import capture, perfetto, trace
from gt.watch.chart import chart, colour
from gt.watch.events import Collective, OpActivity, Recording
from gt.watch.log_reader import read, read_log
from gt.watch.shares import shares
from gt.watch.visualize import data, draw, page

LOG = """\
[TAPE 0.100s] RECV         | vm:7            | BinaryOp  | result=3 op=matmul left=1 right=2
[TAPE 0.100s] RECV         | vm:7            | UnaryOp   | result=4 op=exp input=3
[TAPE 0.100s] RECV         | vm:7            | FreeOp    | tensor=3
[TAPE 0.100s] RECV         | vm:7            | ReadOp    | tensor=4
[TAPE 0.101s] WORKER_SEND  | w_0             | WorkerOp  | op=matmul result=vm:7_3
[TAPE 0.101s] WORKER_SEND  | w_0             | WorkerOp  | op=exp result=vm:7_4
[TAPE 0.101s] WORKER_SEND  | w_0             | WorkerOp  | op=read result=vm:7_4
[TAPE 0.301s] WORKER_RECV  | w_0             | WorkerOp  | success=True
[TAPE 0.401s] WORKER_RECV  | w_0             | WorkerOp  | success=True
[TAPE 0.411s] WORKER_RECV  | w_0             | WorkerOp  | success=True
[TAPE 0.411s] SEND         | vm:7            | BinaryOp  | success=True
[TAPE 0.411s] SEND         | vm:7            | UnaryOp   | success=True
[TAPE 0.411s] SEND         | vm:7            | ReadOp    | success=True
"""


def watched(number: int, *events: e.Event) -> e.Watched:
    return e.Watched(number, events)  # type: ignore[arg-type]


def spans(worker: str, rows: list[tuple[int, int, float, float]], meanings: tuple[e.Meaning, ...] = ()) -> e.Spans:
    numbers, ids, starts, seconds = zip(*rows)
    columns = (array("q", numbers), array("q", ids), array("d", starts), array("f", seconds))
    return e.Spans("vm:7", *(c.tobytes() for c in columns), meanings=meanings, worker=worker)


MATMUL, GATHER = e.Meaning(1, "matmul", "matmul", "", 64), e.Meaning(-2, "all_gather", "collective", workers=(0, 1))


@pytest.fixture
def messages() -> list[e.Watched]:
    """A batch that two workers execute: a product each, of 0.25 and 0.5 s, and a collective."""
    return [
        watched(1, e.Joined("w0", 9.0, 0, "numpy"), e.Joined("w1", 9.0, 1, "numpy"), e.Joined("vm:7", 9.0)),
        watched(2, e.Lines("vm:7", array("q", [3]).tobytes(), array("H", [0]).tobytes(), ("train.py:5",), ((1, 10.0),))),
        watched(3, e.Received("vm:7", 1, 10.25, 2), e.Sent("vm:7", 1, "w0", 10.25, 2), e.Sent("vm:7", 1, "w1", 10.25, 2)),
        watched(4, spans("w0", [(1, 3, 10.5, 0.25), (-2, 3, 10.75, 0.5), (e.END, 1, 11.25, 0.0)], (MATMUL, GATHER))),
        watched(5, spans("w1", [(1, 3, 10.5, 0.5), (-2, 3, 11.0, 0.25), (e.END, 1, 11.25, 0.0)], (MATMUL, GATHER))),
        watched(6, e.Waited("vm:7", 10.0, 1.5, "train.py:6", 64)),
    ]


@pytest.fixture
def recorded(messages: list[e.Watched]) -> Recording:
    found = Recording()
    for message in messages:
        found.add(message.events, message.dropped)
    return found


def test_a_log_gives_the_durations_that_its_times_say() -> None:
    found = read_log(LOG.splitlines())
    assert [(w.name, w.group, round(w.seconds, 3), w.client, w.id) for w in found.work] == [
        ("matmul", "matmul", 0.2, "vm:7", 3),
        ("exp", "elementwise", 0.1, "vm:7", 4),
        ("read", "transfer", 0.01, "vm:7", 4),
    ]
    [waited] = [i for i in found.items if isinstance(i, e.Waited)]
    assert (waited.client, round(waited.seconds, 3)) == ("vm:7", 0.311)
    assert [(i.client, i.instructions) for i in found.items if isinstance(i, e.Received)] == [("vm:7", 3)]
    split = shares(found.work, 0.101, 0.601)
    assert {g: round(s, 3) for g, s in split.items()} == {"matmul": 0.4, "elementwise": 0.2, "transfer": 0.02, "idle": 0.38}


def test_lanes_bars_and_arrows_are_the_recorded_work(recorded: Recording) -> None:
    drawn = chart(recorded)
    assert drawn.lanes == ["client vm:7", "dispatcher", "worker w0", "worker w1"] and drawn.began == 9.0
    bars = [(b.lane, b.name, b.group, b.start, b.stop) for b in drawn.bars if b.lane > 1]
    assert bars == [
        (2, "matmul", "matmul", 1.5, 1.75),
        (2, "all_gather", "collective", 1.75, 2.25),
        (3, "matmul", "matmul", 1.5, 2.0),
        (3, "all_gather", "collective", 2.0, 2.25),
    ]
    arrows = [(a.source, a.at, a.target, a.to, a.sort) for a in drawn.arrows]
    assert arrows == [
        (0, 1.0, 1, 1.25, "flow"),
        (1, 1.25, 2, 1.5, "flow"),
        (1, 1.25, 3, 1.5, "flow"),
        (3, 2.0, 2, 2.25, "collective"),
    ]
    assert [b.line for b in drawn.bars if b.name == "matmul"] == ["train.py:5"] * 2
    assert [(b.name, b.stop - b.start, b.line) for b in drawn.bars if b.group == "wait"] == [
        ("waits for a value", 1.5, "train.py:6")
    ]


def test_perfetto_gets_a_track_for_each_and_both_ends_of_each_arrow(recorded: Recording, tmp_path: Path) -> None:
    perfetto.write(recorded, tmp_path / "t.json")
    found = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {(x["pid"], x["tid"]): x["args"]["name"] for x in found if x["name"] == "thread_name"}
    assert names == {(1, 0): "vm:7", (2, 1): "dispatcher", (3, 2): "w0", (3, 3): "w1"}
    slices = [(x["tid"], x["ts"], x["dur"]) for x in found if x["ph"] == "X" and x["name"] == "matmul"]
    assert slices == [(2, 1.5e6, 0.25e6), (3, 1.5e6, 0.5e6)]
    begins, ends = ({x["id"]: x for x in found if x["ph"] == ph} for ph in "sf")
    assert begins.keys() == ends.keys() and len(begins) == 4
    for number, begin in begins.items():
        for end in (begin, ends[number]):  # viewers bind an arrow to the slice that it lies in
            assert any(
                x["ph"] == "X" and x["tid"] == end["tid"] and x["ts"] <= end["ts"] <= x["ts"] + x["dur"] for x in found
            ), end


def test_a_capture_is_read_as_it_was_written_and_one_cut_short_to_its_end(messages: list[e.Watched], tmp_path: Path) -> None:
    path = tmp_path / "x.capture"
    with capture.CaptureFile(path) as file:
        for message in messages:
            file.write(message)
    assert list(capture.messages(path)) == messages and chart(read(path)).lanes[0] == "client vm:7"
    path.write_bytes(path.read_bytes()[:-5])
    assert list(capture.messages(path)) == messages[:-1]
    assert capture.count(messages[3]) == 3


class LateListener:
    """A listener to whom an event at the end of two seconds comes as late as a worker and a dispatcher may report it."""

    def __init__(self, messages: list[e.Watched]) -> None:
        late = 2 * INTERVALS[e.EVERY]
        self.arriving = list(zip((0.5, 2.0 + 0.99 * late, 2.0 + 1.5 * late), messages))

    def __enter__(self) -> LateListener:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def take(self, seconds: float) -> Iterator[e.Watched]:
        return (message for at, message in self.arriving if at <= seconds)


def test_a_capture_waits_for_the_reports_of_its_last_moment(
    messages: list[e.Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "Listener", lambda *asked: LateListener(messages))
    assert trace.capture("localhost:1", tmp_path / "x.capture", 2.0) == sum(map(capture.count, messages[:2]))
    assert list(capture.messages(tmp_path / "x.capture")) == messages[:2]


def test_work_that_began_before_a_capture_is_drawn_from_its_beginning(tmp_path: Path) -> None:
    with capture.CaptureFile(path := tmp_path / "t.capture") as file:
        file.write(watched(1, e.Joined("w0", 30.0, 0, "numpy"), e.Joined("vm:7", 30.0)))
        file.write(watched(2, spans("w0", [(-2, 3, 8.0, 24.0), (1, 4, 32.0, 0.5)], (MATMUL, GATHER))))
        file.write(watched(3, e.Waited("vm:7", 8.0, 24.5, "train.py:6", 64)))
    found = capture.read(path)
    assert [(w.name, w.start, w.seconds) for w in found.work] == [("all_gather", 30.0, 2.0), ("matmul", 32.0, 0.5)]
    assert [(b.start, b.stop) for b in chart(found).bars if b.group == "wait"] == [(0.0, 2.5)]
    assert chart(found).seconds == 2.5


def test_a_file_that_is_neither_log_nor_capture_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello\n")
    with pytest.raises(GTError, match="neither a capture"):
        read(tmp_path / "x")
    with pytest.raises(GTError, match="cannot read"):
        read(tmp_path / "y")


def test_pictures_have_the_size_that_was_asked_for_and_every_lane(recorded: Recording, tmp_path: Path) -> None:
    drawn = chart(recorded)
    draw(drawn, tmp_path / "t.png", dpi=50, width=8, height=3)
    head = (tmp_path / "t.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and (int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) == (400, 150)
    draw(drawn, tmp_path / "t.svg")
    text = (tmp_path / "t.svg").read_text()
    ElementTree.fromstring(text)
    assert all(lane in text for lane in drawn.lanes) and colour("matmul") in text


def test_a_page_holds_its_data_and_nothing_of_a_user_s_can_end_its_script(recorded: Recording) -> None:
    recorded.items.append(e.Waited("vm:7", 11.0, 0.5, "</script><b>", 1))
    drawn = chart(recorded)
    text = page(drawn, "a <b> title")
    assert "http" not in text.replace("http://www.w3.org", "") and "</script><b>" not in text and "a &lt;b> title" in text
    begin = text.index('type="application/json">') + len('type="application/json">')
    found = json.loads(text[begin : text.index("</script>", begin)])
    assert found == json.loads(json.dumps(data(drawn))) and len(found["bars"]) == len(drawn.bars)


def test_an_interval_that_is_cut_off_counts_by_its_part_within(recorded: Recording) -> None:
    found = shares([w for w in recorded.work if w.worker == "w0"], 10.0, 11.0)
    assert found == {"matmul": 0.25, "collective": 0.25, "idle": 0.5}
    busy = [
        OpActivity("w0", "c", "exp", "elementwise", 0.5, 0.25),
        Collective("w0", "d", "all_reduce", "collective", 0.0, 1.0),
    ]
    assert shares(busy, 0.0, 1.0) == {"elementwise": 0.25, "collective": 0.75, "idle": 0.0}, "others' work while it waits"
