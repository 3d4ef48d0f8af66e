"""The instruction log: what it writes of a conversation."""

from __future__ import annotations

import io
import re
from itertools import count

import pytest

from gt.dispatcher.core import Dispatcher
from gt.ops import TABLE, infer
from gt.program.code import FREE
from gt.spec import Spec, float32
from gt.transport.messages import VERSION, Batch, Done, Hello, Join, KindDef, Mail, TraceDef
from gt.watch.log import InstructionLog, sort_of

F = float32.code
PAIR = (F, 2, 2)
FULL = KindDef(1, "full", ((-3,),), ((2, 2), F))
MATMUL = KindDef(2, "matmul", (PAIR, PAIR), ())
SUM = KindDef(3, "sum", (PAIR,), ((0,), False))
FORM = re.compile(r"\[TAPE \d+\.\d{3}s\] (RECV|WORKER_SEND|WORKER_RECV|SEND) {0,8} +\| .{15,} \| .{9,} \| .+")


class Watched:
    def __init__(self) -> None:
        self.out = io.StringIO()
        ticks = count()
        self.dispatcher = Dispatcher(watch=InstructionLog(self.out, lambda: next(ticks) / 1000))
        self("w0", Join(VERSION, "", "auto_worker", "numpy", "cpu", "127.0.0.1", 8, "ipc://at"))
        self("c", Hello(VERSION, "", "127.0.0.1", 59712))

    def __call__(self, peer: str, message: object) -> list[Mail]:
        return self.dispatcher.handle(Mail(peer, message))

    @property
    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()

    @property
    def texts(self) -> list[str]:
        """The lines without their times."""
        return [line.partition("] ")[2] for line in self.lines]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_an_op_is_logged_on_its_whole_way_in_the_promised_form(watched: Watched) -> None:
    watched("c", Batch(1, (FULL, MATMUL), [(1, 5, 1.0), (1, 6, 2.0)]))
    watched("w0", Done("c", 1))
    watched.out.truncate(0)
    watched.out.seek(0)
    watched("c", Batch(2, (), [(2, 7, 5, 6)]))
    watched("w0", Done("c", 2))
    assert watched.texts == [
        "RECV         | 127.0.0.1:59712 | BinaryOp  | result=7 op=matmul left=5 right=6",
        "WORKER_SEND  | auto_worker     | WorkerOp  | op=matmul result=127.0.0.1:59712_7",
        "WORKER_RECV  | auto_worker     | WorkerOp  | success=True",
        "SEND         | 127.0.0.1:59712 | BinaryOp  | success=True",
    ]
    assert all(FORM.fullmatch(line) for line in watched.lines)


def test_times_count_from_the_start_of_the_log(watched: Watched) -> None:
    watched("c", Batch(1, (FULL,), [(1, 5, 1.0)]))
    assert watched.lines[0].startswith("[TAPE 0.001s] RECV")


def test_statics_and_reads_and_frees_are_told(watched: Watched) -> None:
    watched("c", Batch(1, (FULL, SUM), [(1, 5, 1.0), (3, 6, 5), (FREE, 5)], ((9, 6, (F, 2)),)))
    received = [t.split("|")[2].strip() + " " + t.split("|")[3].strip() for t in watched.texts if t.startswith("RECV")]
    assert received == [
        "CreateOp result=5 op=full inputs=1.0 shape=(2,2) dtype=float32",
        "UnaryOp result=6 op=sum input=5 axis=(0,) keepdims=False",
        "FreeOp tensor=5",
        "ReadOp tensor=6",
    ]


def test_a_line_is_written_at_once_not_when_the_work_is_done(watched: Watched) -> None:
    watched("c", Batch(1, (FULL,), [(1, 5, 1.0)]))
    assert [t.split()[0] for t in watched.texts] == ["RECV", "WORKER_SEND"]


def test_a_failed_op_is_told_apart(watched: Watched) -> None:
    watched("c", Batch(1, (FULL,), [(1, 5, 1.0), (1, 6, 1.0)]))
    watched("w0", Done("c", 1, (6,)))
    assert [t.split("| ")[-1] for t in watched.texts if t.startswith("WORKER_RECV")] == [
        "success=True",
        "success=False result=127.0.0.1:59712_6",
    ]


def test_a_call_of_a_trace_is_logged_as_the_ops_it_stands_for(watched: Watched) -> None:
    trace = TraceDef(7, 2, [(2, 3, 1, 2), (2, 4, 3, 2), (FREE, 3)], (4,))
    watched("c", Batch(1, (FULL, MATMUL), [(1, 5, 1.0), (1, 6, 2.0)]))
    watched("c", Batch(2, (), [(7, 9, 5, 6)], traces=(trace,)))
    watched("w0", Done("c", 2))
    received = [t.split("| ")[-1] for t in watched.texts if t.startswith("RECV")]
    assert received[2:] == ["result=-3 op=matmul left=5 right=6", "result=9 op=matmul left=-3 right=6"]
    assert sum(t.startswith("SEND") for t in watched.texts) == 2


def test_a_client_that_goes_leaves_nothing_in_the_log_s_memory(watched: Watched) -> None:
    watched("c", Batch(1, (FULL,), [(1, 5, 1.0)]))
    log = watched.dispatcher.watch
    assert isinstance(log, InstructionLog) and log.received and log.running
    watched.dispatcher.lose("c", "it left")
    assert not log.received and not log.running


def tried() -> list:
    return [(row, *row.tries[0]) for row in TABLE.values() if row.tries]


@pytest.mark.parametrize(("row", "operands", "statics"), tried(), ids=[t[0].name for t in tried()])
def test_every_row_is_some_sort_of_op(row: object, operands: tuple, statics: dict) -> None:
    operands = tuple(getattr(o, "spec", o) for o in operands)
    ins = tuple(o if isinstance(o, (Spec, type)) else type(o) for o in operands)
    kind = infer(row, ins, tuple(statics[s] for s in row.statics))  # type: ignore[arg-type, attr-defined]
    tensors = sum(isinstance(i, Spec) for i in ins)
    assert sort_of(kind) == "CreateOp" if not tensors else sort_of(kind) in ("UnaryOp", "BinaryOp", "TernaryOp", "NaryOp")
