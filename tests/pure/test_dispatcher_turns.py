"""No message of one client occupies the dispatcher for long: the rest of it waits for its turn."""

from __future__ import annotations

import pytest
from conversation import Conversation

from gt.dispatcher import core, rewrite
from gt.program.code import FREE
from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport.messages import Arrived, Batch, Configure, Fetch, KindDef, Mail, Run

F = float32.code
PAIR = (F, 4, 4)
FULL, ADD = KindDef(1, "full", ((-3,),), ((4, 4), F), "rows"), KindDef(2, "add", (PAIR, PAIR), ())
LOAD = KindDef(3, "load", ((-2,),) * 3, ((4, 4), (4, 4), (0, 0), F))
SLICE = 8  # instructions of two workers


@pytest.fixture
def spread(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> Conversation:
    """Two workers, and two clients that each have tensor 1 on both."""
    monkeypatch.setattr(core, "SLICE", 2 * SLICE)
    for worker in ("w0", "w1"):
        talk.worker(worker)
    for client in ("a", "b"):
        talk.client(client)
        talk(client, Configure({"rows": {"mesh": None, "axes": [0], "workers": None}}))
        talk(client, Batch(1, (FULL, ADD, LOAD), [(1, 1, 1.0)]))
    return talk


def code(mails: list[Mail], worker: str = "w0") -> list[tuple]:
    return [ins for mail in mails if mail.peer == worker and isinstance(mail.message, Run) for ins in mail.message.code]


def gets(mails: list[Mail]) -> list[Fetch]:
    return [get for mail in mails if isinstance(mail.message, Run) for get in mail.message.gets]


def test_a_long_batch_is_cut_and_others_have_their_turn_before_its_rest(spread: Conversation) -> None:
    whole = [(2, id, 1, 1) for id in range(10, 10 + 3 * SLICE)]
    first = spread("a", Batch(2, (), list(whole), ((7, 10, PAIR),), True))
    assert len(code(first)) == SLICE and not gets(first) and list(spread.tables.cut) == ["a"]
    later = spread("a", Batch(3, (), [(2, 99, 10, 10)]))
    assert later == [], "in the order of its stream"
    assert len(code(spread("b", Batch(2, (), [(2, 2, 1, 1)])))) == 1
    rest = spread.turns()
    ids = [ins[1] for ins in code(first) + code(rest)]
    assert ids == [*range(10, 10 + 3 * SLICE), 99] and [get.ticket for get in gets(rest)] == [7, 7]
    assert len(spread.tables.clients["a"].acks[2]) == 2


def test_two_long_batches_take_turns(spread: Conversation) -> None:
    for client in ("a", "b"):
        spread(client, Batch(2, (), [(2, id, 1, 1) for id in range(10, 10 + 3 * SLICE)]))
    turns = []
    while spread.tables.cut:
        turns.append(spread.tables.cut[0])
        spread.told(spread.dispatcher.advance())
    assert turns[:4] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("body", [6, 40])
def test_calls_whose_plans_are_not_kept_are_cut_within_what_they_stand_for(
    spread: Conversation, body: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "LONG", 20)
    inputs = 2 if body == 6 else 1  # twice the same input, or a long one
    values = [inputs + 1 + i for i in range(body)]
    trace = TraceDef(10, inputs, [*[(2, v, 1, inputs) for v in values], *[(FREE, v) for v in values[:-1]]], (values[-1],))
    first = spread("a", Batch(2, (), [(10, 50 + i, *[1] * inputs) for i in range(5)], ((7, 54, PAIR),), traces=(trace,)))
    assert 0 < sum(ins[0] != FREE for ins in code(first)) <= SLICE
    mails = first + spread.turns()
    made = {ins[1] for ins in code(mails)}
    assert {50, 51, 52, 53, 54} <= made and [get.ticket for get in gets(mails)] == [7, 7]
    assert not [id for id in spread.tables.clients["a"].entries if id < 0], "temporaries are freed"


def test_what_an_upload_held_back_is_cut_too(spread: Conversation) -> None:
    spread("a", Batch(2, (), [(3, 5, -1, 0, 0)]))
    for serial in range(3, 9):
        assert spread("a", Batch(serial, (), [(2, 10 * serial + i, 1, 1) for i in range(SLICE)])) == []
    home = spread.tables.clients["a"].home
    assert len(code(spread(f"w{home}", Arrived("a", 5)), f"w{home}")) <= SLICE + 1 and list(spread.tables.cut) == ["a"]


def test_a_client_that_left_has_no_turn(spread: Conversation) -> None:
    spread("a", Batch(2, (), [(2, id, 1, 1) for id in range(10, 10 + 3 * SLICE)]))
    spread.gone("a")
    assert spread.dispatcher.advance() == [] and not spread.tables.cut
