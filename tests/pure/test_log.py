"""The instruction log of a conversation."""

from __future__ import annotations

import re
from array import array
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gt.dispatcher.core import Dispatcher
from gt.ops import TABLE, infer
from gt.program.code import FREE
from gt.spec import Spec, float32
from gt.transport.events import END, READ, Meaning, Spans, State, WorkerReport
from gt.transport.messages import VERSION, Batch, Hello, Join, KindDef, Mail, TraceDef
from gt.watch.log import GONE, InstructionLog, arity_name
from gt.watch.log_file import OrderedLines, RotatedFile, prepared

F = float32.code
PAIR = (F, 2, 2)
FULL = KindDef(1, "full", ((-3,),), ((2, 2), F))
MATMUL = KindDef(2, "matmul", (PAIR, PAIR), ())
SUM = KindDef(3, "sum", (PAIR,), ((0,), False))
FORM = re.compile(r"\[TAPE \d+\.\d{3}s\] (RECV|WORKER_SEND|WORKER_RECV|SEND) {0,8} +\| .{15,} \| .{9,} \| .+")
MEANINGS = (
    Meaning(1, "full", "create"), Meaning(2, "matmul", "matmul"), Meaning(FREE, "a free", "free"),
    Meaning(7, "a trace", "program", ops=(("matmul", "matmul", 0.5, ""),) * 2),
)  # fmt: skip


def lasted(number: int) -> float:
    return 0.0 if number == END else 0.25


def done(rows: list[tuple[int, int, float]], broken: tuple[int, ...] = (), client: str = "c") -> WorkerReport:
    """A worker's report: (number, id, end time) of each instruction."""
    numbers, ids, ends = zip(*rows)
    columns = (
        array("q", numbers),
        array("q", ids),
        array("d", [e - lasted(n) for n, _, e in rows]),
        array("f", [lasted(n) for n in numbers]),
    )
    return WorkerReport((Spans(client, *(c.tobytes() for c in columns), broken=broken, meanings=MEANINGS),))


class Written:
    """A dispatcher whose log is written at once."""

    def __init__(self) -> None:
        self.log, ticks = InstructionLog(), count()
        self.lines: list[tuple[float, str]] = []
        self.dispatcher = Dispatcher(watch=self.see)
        self.now = lambda: next(ticks) / 1000
        self("w0", Join(VERSION, "", "auto_worker", "numpy", "cpu", "127.0.0.1", 8, "ipc://at"))
        self("c", Hello(VERSION, "", "127.0.0.1", 59712))

    def see(self, event: str, who: str, what: Any) -> None:
        self.lines += self.log.lines(self.now(), event, who, prepared(event, what)[0])

    def __call__(self, peer: str, message: object) -> list[Mail]:
        return self.dispatcher.handle(Mail(peer, message))

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]

    def of(self, event: str) -> list[str]:
        return [text.split("| ")[-1] for text in self.texts if text.startswith(f"{event} ")]


@pytest.fixture
def written() -> Written:
    return Written()


def test_an_op_is_logged_on_its_whole_way_in_the_promised_form(written: Written, tmp_path: Path) -> None:
    written("c", Batch(1, (FULL, MATMUL), [(1, 5, 1.0), (1, 6, 2.0)]))
    written("w0", done([(1, 5, 1.0), (1, 6, 1.5), (END, 1, 1.75)]))
    written.lines.clear()
    written("c", Batch(2, (), [(2, 7, 5, 6)]))
    written("w0", done([(2, 7, 2.5), (END, 2, 2.75)]))
    assert written.texts == [
        "RECV         | 127.0.0.1:59712 | BinaryOp  | result=7 op=matmul left=5 right=6",
        "WORKER_SEND  | auto_worker     | WorkerOp  | op=matmul result=127.0.0.1:59712_7",
        "WORKER_RECV  | auto_worker     | WorkerOp  | success=True",
        "SEND         | 127.0.0.1:59712 | BinaryOp  | success=True",
    ]
    file = OrderedLines(RotatedFile(str(tmp_path / "log"), 1 << 20), 0.0)
    for line in written.lines:
        file.add(line)
    file.write(float("inf"))
    file.out.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert all(FORM.fullmatch(line) for line in lines) and lines[2].startswith("[TAPE 2.500s] WORKER_RECV"), lines


def test_each_instruction_has_its_own_time_from_the_worker(written: Written) -> None:
    written("c", Batch(1, (FULL, MATMUL), [(1, 5, 1.0), (1, 6, 2.0), (2, 7, 5, 6), (FREE, 5)], ((9, 7, PAIR),)))
    written("w0", done([(1, 5, 1.0), (1, 6, 1.5), (2, 7, 4.0), (FREE, 5, 4.125), (READ, 7, 4.5), (END, 1, 5.0)]))
    ends = [at for at, text in written.lines if text.startswith("WORKER_RECV")]
    assert ends == [1.0, 1.5, 4.0, 4.5], "the product took 2.5 s, the read half a second"
    assert [at for at, text in written.lines if text.startswith("SEND")] == [5.0] * 4


def test_a_worker_that_hangs_shows_how_far_it_came(written: Written) -> None:
    written("c", Batch(1, (FULL, MATMUL), [(1, 5, 1.0), (1, 6, 2.0), (2, 7, 5, 6)]))
    written("w0", done([(1, 5, 1.0), (1, 6, 1.5)]))
    assert len(written.of("WORKER_SEND")) == 3 and len(written.of("WORKER_RECV")) == 2 and not written.of("SEND")


def test_an_instruction_without_its_own_time_ends_with_its_run(written: Written) -> None:
    written("c", Batch(1, (FULL,), [(1, 5, 1.0), (1, 6, 1.0)]))
    written("c", Batch(2, (), [(1, 7, 1.0)]))
    written("w0", done([(1, 5, 1.0), (END, 1, 3.0)]))
    assert [at for at, text in written.lines if text.startswith("WORKER_RECV")] == [1.0, 3.0]


def test_a_number_is_not_taken_for_a_tensor(written: Written) -> None:
    add = KindDef(4, "add", (PAIR, (-2,)), ())
    written("c", Batch(1, (FULL, add), [(1, 5, 1.0), (4, 6, 5, 5)]))
    assert written.of("RECV")[1] == "result=6 op=add left=5 right=int:5"


def test_statics_and_reads_and_frees_are_told(written: Written) -> None:
    written("c", Batch(1, (FULL, SUM), [(1, 5, 1.0), (3, 6, 5), (FREE, 5)], ((9, 6, (F, 2)),)))
    received = [t.split("|")[2].strip() + " " + t.split("|")[3].strip() for t in written.texts if t.startswith("RECV")]
    assert received == [
        "CreateOp result=5 op=full inputs=float:1.0 shape=(2,2) dtype=float32",
        "UnaryOp result=6 op=sum input=5 axis=(0,) keepdims=False",
        "FreeOp tensor=5",
        "ReadOp tensor=6",
    ]


def test_a_failed_op_is_told_apart(written: Written) -> None:
    written("c", Batch(1, (FULL,), [(1, 5, 1.0), (1, 6, 1.0)]))
    written("w0", done([(1, 5, 1.0), (1, 6, 2.0), (END, 1, 2.0)], broken=(6,)))
    assert written.of("WORKER_RECV") == ["success=True", "success=False result=127.0.0.1:59712_6"]


def test_a_call_of_a_trace_is_logged_as_the_ops_it_stands_for(written: Written) -> None:
    trace = TraceDef(7, 2, [(2, 3, 1, 2), (2, 4, 3, 2), (FREE, 3)], (4,))
    written("c", Batch(1, (FULL, MATMUL), [(1, 5, 1.0), (1, 6, 2.0)]))
    written("c", Batch(2, (), [(7, 9, 5, 6)], traces=(trace,)))
    written("w0", done([(1, 5, 1.0), (1, 6, 1.0), (END, 1, 1.0), (7, 9, 2.0), (END, 2, 2.0)]))
    assert written.of("RECV")[2:] == ["result=-3 op=matmul left=5 right=6", "result=9 op=matmul left=-3 right=6"]
    assert len(written.of("WORKER_RECV")) == 4 and len(written.of("SEND")) == 4


def test_an_instruction_that_waits_for_a_worker_is_logged_once(written: Written) -> None:
    """With auto-start the first batch comes before the worker has: the dispatcher looks at it twice."""
    other = Written()
    other.dispatcher.lose("w0", "it left")
    other.dispatcher.expect(2)
    other("d", Hello(VERSION, "", "127.0.0.1", 2))
    other("d", Batch(1, (FULL,), [(1, 5, 1.0), (1, 6, 1.0)], ((9, 6, PAIR),)))
    assert not other.of("RECV")
    other("w1", Join(VERSION, "", "w1", "numpy", "cpu", "127.0.0.1", 8, "ipc://b"))
    other("w2", Join(VERSION, "", "w2", "numpy", "cpu", "127.0.0.1", 8, "ipc://c"))
    assert len(other.of("RECV")) == 3 and len(other.of("WORKER_SEND")) == 3, other.texts


def test_a_lost_worker_leaves_nothing_to_wait_for(written: Written) -> None:
    written("c", Batch(1, (FULL,), [(1, 5, 1.0)]))
    written.dispatcher.lose("w0", "its connection ended")
    assert not written.log.sent and not written.log.waiting and written.of("SEND") == ["success=True"]


def test_a_client_that_goes_leaves_nothing_in_the_log_s_memory(written: Written) -> None:
    written("c", Batch(1, (FULL,), [(1, 5, 1.0)]))
    log = written.log
    assert log.received and log.sent and log.definitions and log.waiting
    written.dispatcher.lose("c", "it left")
    written("w0", done([(1, 5, 1.0), (END, 1, 1.0)]))
    assert written.of("SEND") == ["success=True"], "work of a worker is logged after its client left"
    for i in range(GONE):
        written(f"c{i}", Hello(VERSION, "", "127.0.0.1", i))
        written.dispatcher.lose(f"c{i}", "it left")
    assert not (log.received or log.sent or log.definitions or log.waiting or log.readers) and len(log.gone) == GONE


def test_the_log_asks_for_no_acknowledgement(written: Written) -> None:
    [mail] = written("c", Batch(1, (FULL,), [(1, 5, 1.0)]))
    assert mail.message.ack is False


def test_a_file_past_its_size_is_followed_by_another_and_four_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = RotatedFile(str(path), 100)
    assert path.stat().st_mode & 0o777 == 0o600, "it has the instructions of all users of a server"
    for i in range(20):
        file.write(f"{i:02}" + "." * 47 + "\n")
    file.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log", "log.1", "log.2", "log.3", "log.4"]
    assert path.read_text()[:2] == "18" and Path(f"{path}.1").read_text()[:2] == "16" and path.stat().st_size == 100


def test_lines_are_written_in_the_order_of_their_times(tmp_path: Path) -> None:
    file = OrderedLines(RotatedFile(str(tmp_path / "log"), 1 << 20), 10.0)
    for at in (12.0, 11.0, 13.0):
        file.add((at, f"at {at:g}"))
    file.write(12.5)
    assert (tmp_path / "log").read_text() == "[TAPE 1.000s] at 11\n[TAPE 2.000s] at 12\n"
    file.out.close()


def tried() -> list:
    return [(row, *row.tries[0]) for row in TABLE.values() if row.tries]


@pytest.mark.parametrize(("row", "operands", "statics"), tried(), ids=[t[0].name for t in tried()])
def test_every_row_is_some_sort_of_op(row: object, operands: tuple, statics: dict) -> None:
    operands = tuple(getattr(o, "spec", o) for o in operands)
    ins = tuple(o if isinstance(o, (Spec, type)) else type(o) for o in operands)
    kind = infer(row, ins, tuple(statics[s] for s in row.statics))  # type: ignore[arg-type, attr-defined]
    tensors = sum(isinstance(i, Spec) for i in ins)
    assert arity_name(kind) == "CreateOp" if not tensors else arity_name(kind) in ("UnaryOp", "BinaryOp", "TernaryOp", "NaryOp")


def test_an_op_that_does_not_end_is_named_by_the_last_line() -> None:
    log = Written()
    log("c", Batch(1, (FULL, MATMUL), [(1, 1, 1.0), (2, 2, 1, 1), (2, 3, 2, 2)]))
    log("w0", done([(1, 1, 0.001)]))
    stuck = State(0.5, 0.0, 0.0, 2, 0, 0, 0, current="matmul", client="c")
    log("w0", WorkerReport((stuck,)))
    assert not any("STALLED" in line for _, line in log.lines), "it has begun a moment ago"
    log.now = lambda: 3.5
    for _ in range(2):
        log("w0", WorkerReport((stuck,)))
    assert [line for _, line in log.lines if "STALLED" in line] == [log.lines[-1][1]]
    words = log.lines[-1][1].split(" | ")
    assert words[0].strip() == "STALLED" and words[1].strip() == "auto_worker"
    assert words[3].startswith("op=matmul result=127.0.0.1:59712_2 seconds=3.")
    log("w0", done([(2, 2, 4.0)]))
    log.now = lambda: 7.5
    log("w0", WorkerReport((stuck,)))
    assert "op=matmul result=127.0.0.1:59712_3" in log.lines[-1][1], "the next one"
