"""Questions of interactive clients that are executed in the middle of another client's long call, on a device that works
asynchronously, and the order of turns and answers around them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gt.program.code import FREE, first_result
from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport.messages import Came, Fetch, KindDef, Mail, Run, Value
from gt.worker.client_turns import LATEST, ClientTurns
from gt.worker.fair_queue import FairQueue
from gt.worker.residency import Residency
from tests.pure.test_light_turns import turns_of_device

DOUBLE = KindDef(2, "add", ((float32.code, 2), (float32.code, 2)), ())
SMALL = KindDef(3, "full", ((-3,),), ((2,), float32.code))
CALL, TRAINER, ASKER = 9, "t", "i"


class Recorded:
    """A CUDA graph, as far as the turns know it: a call writes its result, `inside` is called in its middle."""

    question = recorded = True
    inside: Callable[[], Any] | None = None

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        if self.inside is not None:
            self.inside()
        table[int(first_result(ins))] = table[1] * 2
        return True

    def stats(self) -> dict[str, float]:
        return {}


class Pool:
    """A worker with a trainer, and an interactive client that asks in the middle of the trainer's call."""

    def __init__(self, turns: ClientTurns) -> None:
        self.turns, self.core, self.streams = turns, turns.core, turns.core.streams
        self.sent: list[Mail] = []
        turns.send, self.streams.preferred = self.sent.extend, {ASKER}
        self.graphs = {}
        trace = TraceDef(CALL, 1, [(2, 2, 1, 1), (2, 3, 2, 2)], (3,))
        for client in (TRAINER, ASKER):
            turns.put(client, Run(client, 1, (SMALL, DOUBLE), [(3, 1, 5.0)], traces=(trace,)))
            turns.serve(client)
            self.graphs[client] = self.core.spaces[client].kinds[CALL][2].faster = Recorded()
        turns.next()
        self.asked: list[Run] = []
        turns.take_in = self.take_in

    def take_in(self) -> bool:
        while self.asked:
            run = self.asked.pop()
            self.turns.put(run.client, run)
        return True

    def ask(self, *code: tuple, client: str = ASKER, shape: tuple = (2,)) -> None:
        read = Fetch(7, 6, (float32.code, *shape), (0,), shape)
        self.asked.append(Run(client, 2, (), list(code) or [(CALL, 6, 1)], (read,)))

    def step(self) -> list[str]:
        """A step of the trainer: the clients whose answers wait for the device when its call goes on."""
        waiting: list[str] = []

        def middle() -> None:
            self.core.executor.let_in()
            assert self.streams.current == TRAINER, "the rest of the call is launched on the trainer's stream"
            waiting.extend(client for client, *_ in self.streams.answers)

        self.graphs[TRAINER].inside = middle
        self.turns.queue.shares[TRAINER].virtual = 1.0  # nobody has had more
        self.turns.put(TRAINER, Run(TRAINER, 3, (), [(CALL, 7, 1)]))
        self.turns.serve(TRAINER)
        return waiting


@pytest.fixture
def pool() -> Pool:
    return Pool(turns_of_device())


def test_a_question_is_launched_in_the_middle_of_a_long_call(pool: Pool) -> None:
    launched, share = pool.streams.launched, pool.turns.queue.shares[ASKER]
    before = share.seconds
    pool.ask((FREE, 4), (CALL, 6, 1))
    assert pool.step() == [ASKER] and pool.turns.stats()["short_runs"] == 1 and share.seconds > before
    assert pool.streams.launched <= launched + 1, "the trainer's own call alone counts as its"
    assert pool.core.spaces[TRAINER].table[7].tolist() == [10.0, 10.0]
    pool.turns.clock.now += 1.0  # type: ignore[attr-defined]
    pool.turns.follow_device()
    [answer] = [mail for mail in pool.sent if type(mail.message) is Value]
    assert answer.peer == ASKER and pool.turns.next() is None, "nothing is left of it"


def test_an_answer_is_sent_in_the_middle_of_the_call_too_and_others_answers_are_not(pool: Pool) -> None:
    read = Fetch(8, 1, (float32.code, 2), (0,), (2,))
    pool.turns.put(TRAINER, Run(TRAINER, 3, (), [], (read,)))
    pool.turns.serve(TRAINER)
    pool.ask()
    assert pool.step() == [TRAINER, ASKER] and not pool.sent
    pool.turns.clock.now += 1.0  # type: ignore[attr-defined]
    assert pool.step() == [TRAINER] and [mail.peer for mail in pool.sent] == [ASKER]


def test_what_is_no_recorded_question_waits_for_its_turn(pool: Pool) -> None:
    pool.ask(client=TRAINER)
    assert pool.step() == []
    pool.turns.queue.shares[TRAINER].messages.clear()
    pool.ask((2, 6, 1, 1))  # a kernel by itself
    assert pool.step() == [] and pool.turns.next() == ASKER
    pool.turns.serve(ASKER)
    pool.asked.append(Run(ASKER, 3, (SMALL,), [(CALL, 8, 1)]))  # defines a kind
    assert pool.step() == []
    pool.turns.serve(ASKER)
    pool.streams.answers.clear()
    graph = pool.graphs[ASKER]
    for graph.question, graph.recorded in ((False, True), (True, False), (True, True)):
        pool.ask()
        assert pool.step() == [ASKER] * (graph.question and graph.recorded)
        pool.turns.queue.shares[ASKER].messages.clear()


def test_a_program_in_a_form_that_knows_no_questions_waits_for_its_turn(pool: Pool) -> None:
    pool.core.spaces[ASKER].kinds[CALL][2].faster = SimpleNamespace(run=lambda table, ins: False)
    pool.ask()
    assert pool.step() == [] and pool.core.spaces[TRAINER].table[7].tolist() == [10.0, 10.0]


def test_a_client_that_leaves_is_noticed_before_others_are_let_in(pool: Pool) -> None:
    def take_in() -> bool:
        pool.core.cancellation.gone = {"x"}  # type: ignore[assignment]
        return pool.take_in()

    pool.turns.take_in = take_in
    pool.ask()
    assert pool.step() == []


def test_clients_that_are_not_interactive_and_large_reads_wait_for_their_turn(pool: Pool) -> None:
    pool.ask(shape=(1 << 20,))
    assert pool.step() == [] and not pool.turns.short_runs
    pool.turns.queue.shares[ASKER].messages.clear()
    pool.streams.preferred = {"another"}
    pool.ask()
    assert pool.step() == []
    pool.streams.preferred = {ASKER}
    assert pool.step() == [ASKER]


def test_a_question_that_needs_memory_to_be_moved_waits_for_its_turn(pool: Pool) -> None:
    host, values = pool.core.host, pool.core.spaces[ASKER]
    host.residency = Residency(1000, 1 << 20)
    ready = values.kinds[CALL][2]
    values.guarded, ready.needs, host.residency.stale, host.residency.on_device = True, (512, 8, False), False, 800
    pool.ask()
    assert pool.step() == []
    host.residency.on_device, host.residency.stale = 100, False
    assert pool.turns.queue.waits({ASKER}) and host.has_room(values, Run(ASKER, 2, (), [(CALL, 6, 1)]))
    values.moved = 1
    assert not host.has_room(values, Run(ASKER, 2, (), [(CALL, 6, 1)]))


def test_nothing_is_moved_to_the_host_in_the_middle_of_a_call(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    host, chosen = pool.core.host, list[int]()
    monkeypatch.setattr(Residency, "choose", lambda *args: chosen.append(1) or [])
    pool.graphs[ASKER].inside = lambda: host._move_out(pool.core.spaces[ASKER], 1, ())
    pool.ask()
    assert pool.step() == [ASKER] and not chosen
    pool.graphs[ASKER].inside()
    assert chosen, "afterwards it can be"


def test_nothing_overtakes_while_an_observer_records_or_a_client_leaves(pool: Pool) -> None:
    pool.core.recorder = SimpleNamespace(watch=lambda values: None)  # type: ignore[assignment]
    pool.ask()
    assert pool.step() == []
    pool.core.recorder, pool.core.cancellation.gone = None, {"x"}  # type: ignore[assignment]
    assert pool.step() == []
    pool.core.cancellation.gone = set()  # type: ignore[assignment]
    assert pool.step() == [ASKER]


def test_a_client_alone_is_not_interrupted(pool: Pool) -> None:
    del pool.turns.queue.shares[ASKER]
    looks: list[int] = []
    pool.turns.take_in = lambda: bool(looks.append(1)) or True
    pool.step()
    assert not looks


def test_the_turn_of_an_interactive_client_that_came_is_before_answers_to_others(pool: Pool) -> None:
    turns, answered = pool.turns, list[str]()
    read = Fetch(8, 1, (float32.code, 2), (0,), (2,))
    turns.put(TRAINER, Run(TRAINER, 3, (), [], (read,)))
    turns.serve(TRAINER)
    turns.clock.now += 1.0  # type: ignore[attr-defined]
    turns.send = lambda mails: answered.extend(mail.peer for mail in mails)
    turns.follow_at = turns.clock.now + LATEST  # type: ignore[attr-defined]
    pool.ask()
    pool.take_in()
    assert not turns.follow_device()
    assert not answered and turns.next() == ASKER
    assert turns.follow_device(), "which takes a while, so another question may have come"
    assert answered == [TRAINER], "one turn, and no more: an interactive trainer cannot keep others' answers"
    pool.streams.preferred, turns.measure_at = set(), 1e9
    assert not turns.follow_device()


def test_interactive_clients_that_come_again_and_again_delay_answers_by_half_a_millisecond_at_most(pool: Pool) -> None:
    turns, skipped = pool.turns, 0
    turns.follow_device()
    began = turns.clock()
    while turns.follow_at < began + 2 * LATEST:
        pool.ask()
        pool.take_in()
        turns.queue.arrivals += 1  # some client or other came
        before = turns.follow_at
        turns.follow_device()
        skipped += turns.follow_at == before
    assert skipped > 10 and turns.clock() - began < 2 * LATEST


def test_of_equals_an_interactive_client_goes_first() -> None:
    queue = FairQueue()
    queue.introduce(Came("asks", 4.0, interactive=True))
    for client in ("busy", "asks", "other"):
        queue.put(client, Run(client, 1, (), []), 0.0)
    assert queue.next(None, ()) == "asks"
    queue.charge("asks", 1.0)
    assert queue.next(None, ()) == "busy"
