"""A long program is preempted between two of its instructions when others wait, and resumed there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gt.spec import float32
from gt.transport.messages import Drop, Failed, Fetch, KindDef, Mail, Run, TraceDef, Value, Welcome
from gt.worker.core import Worker
from gt.worker.engine.choose import make
from gt.worker.host_memory import readable
from gt.worker.peer_names import DISPATCHER
from gt.worker.turns import Turn

F = float32.code
N = 1024
WIDE = (F, N, N)  # an add of two of these is estimated to take 0.8 milliseconds
FULL = KindDef(1, "full", ((-3,),), ((N, N), F))
ADD = KindDef(2, "add", (WIDE, WIDE), ())
PICK = KindDef(3, "reshape", (WIDE,), ((N, N),))
TRACE = TraceDef(9, 1, [(2, 2, 1, 1), (2, 3, 2, 1), (2, 4, 3, 1)], (4,))  # x -> 4 x


class Others:
    """Whether others wait: true for the first `times` questions."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> bool:
        self.times -= 1
        return self.times >= 0


@pytest.fixture(params=["numpy", "pytorch"])
def worker(request: Any) -> Worker:
    made = Worker(make(request.param))
    made.handle(Mail(DISPATCHER, Welcome("w0", 0)))
    return made


def begin(worker: Worker, times: int) -> list[Mail]:
    clock = iter(range(10**6))
    worker.executor.turn = Turn(lambda: next(clock) * 0.0011, Others(times))  # a turn lasts until the clock was looked at twice
    worker.executor.turn.begin(0.0, several=True)
    gets = (Fetch(7, 5, WIDE, (0, 0), (N, N)),)
    return worker.handle(Mail(DISPATCHER, Run("c", 1, (FULL, ADD), [(1, 1, 0.5), (9, 5, 1)], gets, traces=(TRACE,))))


def go_on(worker: Worker) -> list[Mail]:
    assert worker.executor.turn is not None
    worker.executor.turn.begin(0.0, several=True)
    return worker.go_on("c")


def left_in_the_middle(worker: Worker) -> bool:
    return "c" in worker.preempted and worker.preempted["c"].stopped.resume is not None


def test_a_program_is_left_and_gone_on_with(worker: Worker) -> None:
    mails, turns = begin(worker, 5), 0
    while "c" in worker.preempted:
        turns += left_in_the_middle(worker)
        turn, worker.executor.turn = worker.executor.turn, None
        other = worker.handle(Mail(DISPATCHER, Run("d", 1, (FULL,), [(1, 5, 3.0)])))
        worker.executor.turn = turn
        assert not other and worker.spaces["d"].table[5][0][0] == 3.0, "another client's values are its own"
        assert 5 not in worker.spaces["c"].table
        mails += go_on(worker)
    assert turns == 1
    [value] = [m for m in mails if isinstance(m.message, Value)]
    assert np.frombuffer(value.frames[0], "f4").reshape(N, N)[3, 4] == 2.0


def test_alone_a_program_is_not_left(worker: Worker) -> None:
    [mail] = begin(worker, 0)
    assert isinstance(mail.message, Value) and not worker.preempted


def test_a_failure_after_a_pause_is_told_of_its_tensor(worker: Worker) -> None:
    begin(worker, 100)
    while not left_in_the_middle(worker):
        go_on(worker)

    def fails() -> None:
        raise MemoryError("no room")

    worker.preempted["c"].stopped.resume = fails
    [mail] = go_on(worker)
    assert isinstance(mail.message, Failed) and mail.message.error == "OutOfMemory"


def test_the_rest_of_a_program_whose_client_is_gone_is_not_run(worker: Worker) -> None:
    begin(worker, 100)
    while not left_in_the_middle(worker):
        go_on(worker)
    worker.leaving(Drop("c"))
    go_on(worker)
    assert not worker.preempted
    worker.handle(Mail(DISPATCHER, Drop("c")))
    assert "c" not in worker.spaces


@pytest.mark.parametrize("times", range(1, 7))
def test_memory_of_a_run_that_was_left_is_moved_and_found_again(worker: Worker, times: int) -> None:
    worker.host.limit(16 << 20, 1 << 30)  # four such arrays
    clock = iter(range(10**6))
    worker.executor.turn = Turn(lambda: next(clock) * 0.0011, Others(times))
    worker.executor.turn.begin(0.0, several=True)
    made, worker.host.always = worker.host.always, False
    code = [(1, n, float(n)) for n in (1, 2)] + [(2, 3, 1, 2), (9, 5, 3), (2, 6, 1, 5)]  # 6 is 1 + 4 (1 + 2)
    gets = (Fetch(7, 6, WIDE, (0, 0), (N, N)),)
    mails = worker.handle(Mail(DISPATCHER, Run("c", 1, (FULL, ADD), code, gets, traces=(TRACE,))))
    worker.host.always = made
    moved = 0
    while "c" in worker.preempted:
        turn, worker.executor.turn = worker.executor.turn, None
        worker.handle(Mail(DISPATCHER, Run("d", 1, (FULL,), [(1, 5, 3.0), (1, 6, 4.0), (1, 7, 5.0)])))
        worker.executor.turn, moved = turn, moved + worker.spaces["c"].moved
        assert readable(worker.spaces["d"].table[6])[0][0] == 4.0
        mails += go_on(worker)
    [value] = [m for m in mails if isinstance(m.message, Value)]
    assert np.frombuffer(value.frames[0], "f4").reshape(N, N)[3, 4] == 13.0
    assert moved or times < 4, "the one who was left had to make room"
