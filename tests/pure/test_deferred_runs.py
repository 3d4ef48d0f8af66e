"""Runs that wait at a worker for their client's Start: when they are executed, and by which messages they are cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from gt.errors import ProtocolError
from gt.program.code import FREE
from gt.spec import float32
from gt.transport.checks import DEFERRED, batch
from gt.transport.messages import Batch, Failed, Fetch, KindDef, Mail, Run, Start
from gt.worker.core import Worker
from gt.worker.deferred_runs import MOST, DeferredRuns
from gt.worker.engine.choose import make
from gt.worker.peer_names import DISPATCHER
from gt.worker.segments import Memory

F = float32.code
LOAD = KindDef(5, "load", ((-2,), (-2,), (-2,)), ((2, 2), (2, 2), (0, 0), F))
EXP = KindDef(3, "exp", ((F, 2, 2),), ())
NOWHERE, PLACE, OTHER = (0, 0, 0), (9, 0, 16), (9, 16, 16)


@pytest.fixture
def runs() -> DeferredRuns:
    worker = Worker(make("numpy"), Memory())
    worker.handle(Mail(DISPATCHER, Run("c", 1, (LOAD, EXP), [])))
    return DeferredRuns(worker.spaces)


def question(serial: int, first: int = 100, loads: int = 1) -> Run:
    """So many loads, an op of the first of them, and its read; it frees tensor 7."""
    code: list[Any] = [(5, first + i, *NOWHERE) for i in range(loads)]
    code += [(FREE, 7), (3, first + loads, first)]
    return Run("c", serial, (), code, (Fetch(serial, first + loads, (F, 2, 2), (0, 0), (2, 2)),), deferred=loads)


def started(serial: int, first: int = 100) -> list[Run]:
    """The question as it is executed, with its place."""
    code = [(5, first, *PLACE), (FREE, 7), (3, first + 1, first)]
    return [Run("c", serial, (), code, question(serial, first).gets)]


CANCELLED = Run("c", 2, (), [(FREE, 7)])


def failed(found: tuple[list[Run], list[Mail]]) -> list[int]:
    return [mail.message.ticket for mail in found[1] if isinstance(mail.message, Failed) and mail.peer == "c"]


def test_a_run_waits_for_its_start(runs: DeferredRuns) -> None:
    assert runs.arrived(question(2)) == ([], [])
    assert runs.start("c", Start(2, (PLACE,))) == (started(2), [])
    assert not runs.waiting and runs.stats() == {"deferred_runs": 1, "deferred_cancelled": 0}


def test_a_start_that_came_first_is_used_when_its_run_comes(runs: DeferredRuns) -> None:
    assert runs.start("c", Start(2, (PLACE,))) == ([], [])
    assert runs.arrived(question(2)) == (started(2), [])
    assert not runs.waiting and not runs.early["c"]


def test_a_start_that_came_before_an_earlier_run_too_is_kept_for_its_own(runs: DeferredRuns) -> None:
    runs.start("c", Start(4, (PLACE,)))
    assert runs.arrived(question(2)) == ([], [])
    assert runs.arrived(Run("c", 3, (), [(3, 50, 40)]))[0][0] == CANCELLED
    assert runs.arrived(question(4, 200)) == (started(4, 200), [])


def test_starts_of_several_threads_wait_for_their_runs_and_one_whose_run_was_refused_for_nothing(runs: DeferredRuns) -> None:
    for serial in (2, 4, 6):
        runs.start("c", Start(serial, (PLACE,)))
    assert runs.arrived(question(2)) == (started(2), [])
    assert runs.arrived(question(6, 200)) == (started(6, 200), [])
    assert not runs.early["c"]
    for serial in range(7, 7 + MOST):
        runs.start("c", Start(serial))
    with pytest.raises(ProtocolError):
        runs.start("c", Start(100))


def test_a_run_without_loads_is_executed_as_it_is(runs: DeferredRuns) -> None:
    run = Run("c", 2, (), [(3, 101, 100)], deferred=0)
    runs.arrived(run)
    assert runs.start("c", Start(2)) == ([Run("c", 2, (), [(3, 101, 100)])], [])


def test_frees_of_other_tensors_wait_behind_it(runs: DeferredRuns) -> None:
    runs.arrived(question(2))
    behind = Run("c", 3, (), [(FREE, 8)], ack=True)
    assert runs.arrived(behind) == ([], [])
    assert runs.start("c", Start(2, (PLACE,))) == ([*started(2), behind], [])


@pytest.mark.parametrize(
    "message",
    [
        Run("c", 3, (), [(3, 50, 40)]),
        Run("c", 3, (), [(FREE, 100)]),
        Run("c", 3, (), [], (Fetch(9, 1, (F,), (), ()),)),
        Run("c", 3, (EXP,), []),
        Run("c", 3, (), [], drops=(4,)),
    ],
    ids=["op", "free of its own", "read", "definition", "drop"],
)
def test_any_other_message_cancels_it_and_a_late_start_is_answered_by_a_failure(runs: DeferredRuns, message: Run) -> None:
    runs.arrived(question(2))
    assert runs.arrived(message) == ([CANCELLED, message], [])
    found = runs.start("c", Start(2, (PLACE,)))
    assert found[0] == [] and failed(found) == [2]
    assert runs.stats() == {"deferred_runs": 0, "deferred_cancelled": 1}


def test_the_next_question_cancels_one_that_was_not_asked(runs: DeferredRuns) -> None:
    runs.arrived(question(2))
    assert runs.arrived(question(3, 200)) == ([CANCELLED], [])
    assert runs.start("c", Start(3, (PLACE,))) == (started(3, 200), [])


def test_another_client_s_runs_pass(runs: DeferredRuns) -> None:
    runs.arrived(question(2))
    other = Run("d", 2, (), [(3, 50, 40)])
    assert not runs.concerns(other) and runs.arrived(other) == ([other], [])
    with pytest.raises(ProtocolError):
        runs.start("c", Start(1))
    assert runs.start("d", Start(2, (PLACE,))) == ([], []) and runs.waiting.keys() == {"c"}


@pytest.mark.parametrize("places", [(), (PLACE, OTHER)], ids=["fewer", "more"])
def test_places_for_other_loads_than_it_has_execute_nothing(runs: DeferredRuns, places: Any) -> None:
    runs.arrived(question(2))
    found = runs.start("c", Start(2, places))
    assert found[0] == [CANCELLED] and failed(found) == [2]


def test_a_place_is_given_to_loads_alone(runs: DeferredRuns) -> None:
    """A client that counts an op as a load."""
    runs.arrived(Run("c", 2, (), [(3, 101, 100)], (Fetch(2, 101, (F, 2, 2), (0, 0), (2, 2)),), deferred=1))
    found = runs.start("c", Start(2, (PLACE,)))
    assert found[0] == [Run("c", 2, (), [])] and failed(found) == [2]


def test_a_start_that_is_repeated_or_older_is_an_error(runs: DeferredRuns) -> None:
    runs.arrived(question(5))
    with pytest.raises(ProtocolError, match="batch 4 has no deferred run"):
        runs.start("c", Start(4, (PLACE,)))
    runs.start("c", Start(5, (PLACE,)))
    runs.start("c", Start(6))
    with pytest.raises(ProtocolError, match="batch 6 has no deferred run"):
        runs.start("c", Start(6))


def test_nothing_is_kept_of_a_client_that_has_left(runs: DeferredRuns) -> None:
    runs.start("c", Start(9))
    runs.arrived(question(2))
    runs.arrived(question(3, 200))
    runs.forget("c")
    assert not runs.waiting and not runs.early and not runs.cancelled


@pytest.mark.parametrize("deferred", [-1, 2, DEFERRED + 1])
def test_a_batch_with_an_impossible_count_of_loads_is_refused(deferred: int) -> None:
    with pytest.raises(ProtocolError, match="a deferred batch of 1 instructions"):
        batch(Batch(1, (), [(3, 2, 1)], deferred=deferred))
