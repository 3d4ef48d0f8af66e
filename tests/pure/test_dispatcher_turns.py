"""No message of one client occupies the dispatcher for long: the rest of it waits for its turn."""

from __future__ import annotations

from typing import Any

import pytest
from conversation import Conversation

from gt.dispatcher import core, plan, redistribute, rewrite, sharding, steps, stream
from gt.dispatcher.sharded_programs import ShardedProgram
from gt.dispatcher.tables import Refused
from gt.program.code import FREE
from gt.program.wire import TraceDef
from gt.spec import float32
from gt.transport import checks
from gt.transport.messages import Arrived, Batch, Bye, Configure, Failed, Fetch, KindDef, Mail, Run

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
    assert len(code(first)) == SLICE - rewrite.NEW // 2 and not gets(first) and list(spread.tables.cut) == ["a"]
    later = spread("a", Batch(3, (), [(2, 99, 10, 10)]))
    assert later == [], "in the order of its stream"
    assert len(code(spread("b", Batch(2, (), [(2, 2, 1, 1)])))) == 1
    rest = spread.turns()
    ids = [ins[1] for ins in code(first) + code(rest)]
    assert ids == [*range(10, 10 + 3 * SLICE), 99] and [get.ticket for get in gets(rest)] == [7, 7]
    assert len(spread.tables.clients["a"].acks[2]) == 2


def test_reads_of_many_pieces_are_cut_and_later_messages_wait(spread: Conversation) -> None:
    asked = tuple((ticket, 1, PAIR) for ticket in range(7, 7 + 5 * SLICE))
    first = spread("a", Batch(2, (), [(2, 5, 1, 1)], asked, True))
    assert 0 < len(gets(first)) <= 2 * SLICE and list(spread.tables.cut) == ["a"] and not spread.tables.clients["a"].acks
    assert spread("a", Batch(3, (), [(FREE, 1)])) == [], "the tensor is freed after its reads"
    assert len(gets(spread("b", Batch(2, (), [], ((7, 1, PAIR),))))) == 2
    steps = [first]
    while spread.tables.cut:
        steps.append(spread.told(spread.dispatcher.advance()))
        assert len(gets(steps[-1])) <= 2 * SLICE
    assert [get.ticket for mails in steps for get in gets(mails) if mails and get.start == (0, 0)] == [t for t, _, _ in asked]
    assert [len(code(mails)) for mails in steps][0] == 1 and code(steps[-1]) == [(FREE, 1)]
    assert len(spread.tables.clients["a"].acks[2]) == 2


def test_traces_are_sent_a_few_at_a_time_as_their_worker_prepares_each_before_it_serves_others(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "SLICE", 100)
    talk.worker("w0")
    talk.client("a")
    talk("a", Batch(1, (KindDef(1, "full", ((-3,),), ((4, 4), F)), ADD), [(1, 1, 1.0)]))
    body = [(2, 2, 1, 1), *((2, 3 + i, 2 + i, 1) for i in range(49))]
    traces = tuple(TraceDef(10 + n, 1, body, (51,)) for n in range(8))
    first = talk("a", Batch(2, (), [(10 + n, 10 + n, 1) for n in range(8)], ((7, 17, PAIR),), traces=traces))
    runs = [mail.message for mail in first + talk.turns() if isinstance(mail.message, Run)]
    sent = [[trace.number for trace in run.traces] for run in runs]
    assert [n for some in sent for n in some] == [*range(10, 18)] and max(map(len, sent)) <= 2
    assert [ins[0] for run in runs for ins in run.code] == [*range(10, 18)] and [g.ticket for g in runs[-1].gets] == [7]


def test_an_op_of_too_many_operands_for_so_many_workers_is_refused(
    spread: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PIECES", 8)
    cats = [KindDef(4 + n, "cat", (PAIR,) * n, (0,)) for n in (4, 5)]
    mails = spread("a", Batch(2, tuple(cats), [(8, 10, *[1] * 4), (9, 11, *[1] * 5)], ((7, 11, (F, 20, 4)),))) + spread.turns()
    failed = [mail.message for mail in mails if isinstance(mail.message, Failed)]
    assert len(failed) == 1 and "expected at most 4: use it on fewer operands at a time" in failed[0].text
    assert 10 in {id for ins in code(mails) for id in ins[1:2]} and 11 not in {id for ins in code(mails) for id in ins[1:2]}


def test_two_long_batches_take_turns(spread: Conversation) -> None:
    for client in ("a", "b"):
        spread(client, Batch(2, (), [(2, id, 1, 1) for id in range(10, 10 + 3 * SLICE)]))
    turns = []
    while spread.tables.cut:
        turns.append(spread.tables.cut[0])
        spread.told(spread.dispatcher.advance())
    assert turns[:4] == ["a", "b", "a", "b"]


@pytest.mark.parametrize("body", [6, 40])
def test_calls_whose_plans_are_not_kept_are_cut_within_their_instructions(
    spread: Conversation, body: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "LONG", 20)
    inputs = 2 if body == 6 else 1  # twice the same input, or a long one
    values = [inputs + 1 + i for i in range(body)]
    trace = TraceDef(10, inputs, [*[(2, v, 1, inputs) for v in values], *[(FREE, v) for v in values[:-1]]], (values[-1],))
    spread("a", Batch(2, (), [], traces=(trace,)))
    spread.turns()
    first = spread("a", Batch(3, (), [(10, 50 + i, *[1] * inputs) for i in range(5)], ((7, 54, PAIR),)))
    assert 0 < sum(ins[0] != FREE for ins in code(first)) <= SLICE
    mails = first + spread.turns()
    made = {ins[1] for ins in code(mails)}
    assert {50, 51, 52, 53, 54} <= made and [get.ticket for get in gets(mails)] == [7, 7]
    assert not [id for id in spread.tables.clients["a"].entries if id < 0], "temporaries are freed"


def test_a_batch_that_an_upload_held_back_is_cut_too(spread: Conversation) -> None:
    spread("a", Batch(2, (), [(3, 5, -1, 0, 0)]))
    for serial in range(3, 9):
        assert spread("a", Batch(serial, (), [(2, 10 * serial + i, 1, 1) for i in range(SLICE)])) == []
    home = spread.tables.clients["a"].home
    assert len(code(spread(f"w{home}", Arrived("a", 5)), f"w{home}")) <= SLICE + 1 and list(spread.tables.cut) == ["a"]


def test_a_client_that_left_has_no_turn(spread: Conversation) -> None:
    spread("a", Batch(2, (), [(2, id, 1, 1) for id in range(10, 10 + 3 * SLICE)]))
    spread.gone("a")
    assert spread.dispatcher.advance() == [] and not spread.tables.cut


def kinds(first: int, count: int) -> tuple[KindDef, ...]:
    return tuple(KindDef(first + i, "add", ((F, 1 + i), (F, 1 + i)), ()) for i in range(count))


def test_many_definitions_are_cut_and_their_calls_wait(spread: Conversation) -> None:
    many = kinds(10, 10 * SLICE)
    odd = KindDef(9, "add", ((F, 2), (F, 3)), ())
    first = spread("a", Batch(2, (odd, *many, KindDef(400, "add", (PAIR, PAIR), ())), [(400, 5, 1, 1)], ((7, 5, PAIR),), True))
    assert not gets(first) and list(spread.tables.cut) == ["a"] and len(spread.tables.clients["a"].uses) < 3 * SLICE
    assert len(code(spread("b", Batch(2, (), [(2, 2, 1, 1)])))) == 1
    turns = 1
    while spread.tables.cut:
        first += spread.told(spread.dispatcher.advance())
        turns += 1
    assert turns > 5 and [ins[1] for ins in code(first)] == [5] and [get.ticket for get in gets(first)] == [7, 7]
    assert isinstance(spread.tables.clients["a"].uses[9], Refused) and spread.tables.clients["a"].unfinished is None


def test_a_long_trace_is_read_in_turns(spread: Conversation) -> None:
    values = list(range(2, 2 + 40 * SLICE))
    trace = TraceDef(10, 1, [*[(2, v, v - 1, 1) for v in values], *[(FREE, v) for v in values[:-1]]], (values[-1],))
    assert spread("a", Batch(2, (), [], traces=(trace, TraceDef(11, 1, [(2, 2, 1, 3)], (2,))))) == []
    assert list(spread.tables.cut) == ["a"] and 10 not in spread.tables.clients["a"].uses
    spread.turns()
    uses = spread.tables.clients["a"].uses
    assert len(uses[10].program.instructions) == len(values) and isinstance(uses[11], Refused)


def program(body: int) -> TraceDef:
    """A program with a hole, whose tensors lie on both workers."""
    values = list(range(2, 2 + body))
    instructions = [(4, v, v - 1, 0.0) for v in values]
    return TraceDef(10, 1, [*instructions, *[(FREE, v) for v in values[:-1]]], (values[-1],), (((0, 3),),))


SCALED = KindDef(4, "mul", (PAIR, (-3,)), ())


def planned(talk: Conversation) -> list[Mail]:
    mails = talk("a", Batch(2, (SCALED,), [], traces=(program(5 * SLICE),)))
    mails += talk.turns()
    mails += talk("a", Batch(3, (), [(10, 50, 1, 2.0), (2, 51, 50, 1)], ((7, 51, PAIR),)))
    return mails


def test_the_first_plan_of_a_program_is_cut_and_later_calls_use_it(
    spread: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planned(spread)
    assert 0 < len(code(first)) <= SLICE + 1 and not gets(first) and list(spread.tables.cut) == ["a"]
    assert len(code(spread("b", Batch(2, (), [(2, 2, 1, 1)])))) == 1
    turns = 0
    while spread.tables.cut:
        first += spread.told(spread.dispatcher.advance())
        turns += 1
    made = [ins for ins in code(first) if ins[0] != FREE]
    assert turns > 6 and len(made) == 5 * SLICE + 1 and made[0][-1] == 2.0 and [get.ticket for get in gets(first)] == [7, 7]
    again = spread("a", Batch(4, (), [(10, 60, 1, 3.0)]))
    assert len(code(again)) == len(code(again, "w1")) == 1 and code(again)[0][-1] == 3.0
    assert not [id for id in spread.tables.clients["a"].entries if id < 0], "temporaries are freed"


def test_a_plan_made_in_turns_equals_one_made_at_once(talk: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for slice in (2 * SLICE, 1 << 20):
        monkeypatch.setattr(core, "SLICE", slice)
        one = Conversation()
        for worker in ("w0", "w1"):
            one.worker(worker)
        one.client("a")
        one("a", Configure({"rows": {"mesh": None, "axes": [0], "workers": None}}))
        one("a", Batch(1, (FULL, ADD, LOAD), [(1, 1, 1.0)]))
        mails = planned(one) + one.turns() + one("a", Batch(4, (), [(10, 60, 1, 3.0)]))
        written.append([(code(mails, w), [m.message.traces for m in mails if isinstance(m.message, Run) and m.message.traces])
                        for w in ("w0", "w1")])  # fmt: skip
    assert written[0] == written[1]


def test_a_plan_that_a_lost_worker_interrupts_serves_no_later_call(spread: Conversation) -> None:
    planned(spread)
    spread.gone("w1")
    spread.turns()
    client = spread.tables.clients["a"]
    assert not any(isinstance(plan, ShardedProgram) for plan in client.plans.values()) and client.unfinished is None
    [failed] = spread("a", Batch(5, (), [], ((8, 51, PAIR),)))
    assert isinstance(failed.message, Failed) and "w1" in failed.message.text


def test_definitions_that_wait_for_an_upload_are_bounded(spread: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "HELD", 1000)
    spread("a", Batch(2, (), [(3, 5, -1, 0, 0)]))
    for serial in range(3, 100):
        mails = spread("a", Batch(serial, kinds(100 * serial, 10), []))
        if mails:
            break
    assert isinstance(mails[0].message, Bye) and "the most are 1000" in mails[0].message.why and serial > 20


def test_a_long_batch_for_one_worker_is_cut(spread: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST", 20)
    full = KindDef(5, "full", ((-3,),), ((4, 4), F))
    first = spread("a", Batch(2, (full,), [(5, id, 1.0) for id in range(10, 100)], ((7, 99, PAIR),), True))
    home = f"w{spread.tables.clients['a'].home}"
    assert len(code(first, home)) == 20 and not gets(first) and list(spread.tables.cut) == ["a"]
    rest = spread.turns()
    assert [ins[1] for ins in code(first + rest, home)] == [*range(10, 100)] and [get.ticket for get in gets(rest)] == [7]


@pytest.mark.parametrize("wrong", [(999, 5, 1), (2, 5, 777, 777), (2, 5, 1)], ids=["kind", "tensor", "length"])
def test_refused_instructions_are_cut(spread: Conversation, wrong: tuple) -> None:
    refused: list[int] = []
    spread.dispatcher.reports.dropped = lambda peer, why, count=1, cause=None: refused.append(count)  # type: ignore[method-assign]
    first = spread("a", Batch(2, (), [(wrong[0], id, *wrong[2:]) for id in range(10, 200)], ((7, 199, PAIR),)))
    assert refused == [2 * SLICE] and not first and list(spread.tables.cut) == ["a"]
    [answer] = spread.turns()
    assert isinstance(answer.message, Failed) and answer.message.ticket == 7
    assert sum(refused) == 190 and max(refused) <= 2 * SLICE


def test_new_plans_are_cut_so_that_no_worker_has_many_kernels_to_prepare_at_once(spread: Conversation) -> None:
    many = [KindDef(10 + n, "full", ((-3,),), ((1 + n,), F)) for n in range(60)]
    mails = [spread("a", Batch(2, tuple(many), [(10 + n, 10 + n, 1.0) for n in range(60)]))]
    while spread.tables.cut:
        mails.append(spread.told(spread.dispatcher.advance()))
    sent = [len(mail.message.kinds) for step in mails for mail in step if isinstance(mail.message, Run)]
    assert sum(sent) == 60 and max(sent) <= 2 * SLICE // rewrite.NEW


@pytest.mark.parametrize("many", ["operands", "results"])
def test_instructions_of_many_operands_or_results_are_cut(spread: Conversation, many: str) -> None:
    n = rewrite.MANY * SLICE  # half a slice
    full, add = KindDef(5, "full", ((-3,),), ((n,), F)), KindDef(7, "add", ((F, n), (F, n)), ())
    if many == "operands":
        defined = Batch(2, (full, KindDef(6, "cat", ((F, n),) * n, (0,))), [(5, 5, 1.0)])
        use = [(6, 10 + i, *[5] * n) for i in range(6)]
    else:
        results = tuple(range(2, 2 + n))
        defined = Batch(2, (full, add), [(5, 5, 1.0)], traces=(TraceDef(6, 1, [(7, r, 1, 1) for r in results], results),))
        use = [(6, *range(100 + i * n, 100 + i * n + n), 5) for i in range(6)]
    spread("a", defined)
    spread.turns()
    home = f"w{spread.tables.clients['a'].home}"
    steps = [spread("a", Batch(3, (), use))]
    while spread.tables.cut:
        steps.append(spread.told(spread.dispatcher.advance()))
    sent = [0] if many == "results" else []  # the worker prepares the trace
    assert [len(code(step, home)) for step in steps] == [*sent, 2, 2, 2]


def test_calls_with_many_results_on_several_workers_are_cut(spread: Conversation) -> None:
    n = 2 * rewrite.MANY
    results = tuple(range(2, 2 + n))
    spread("a", Batch(2, (), [], traces=(TraceDef(6, 1, [(2, r, 1, 1) for r in results], results),)))
    spread("a", Batch(3, (), [(6, *range(1000, 1000 + n), 1)]))  # the first call is planned one by one
    spread.turns()
    steps = [spread("a", Batch(4, (), [(6, *range(2000 + i * n, 2000 + i * n + n), 1) for i in range(9)]))]
    while spread.tables.cut:
        steps.append(spread.told(spread.dispatcher.advance()))
    written = [len(code(step)) for step in steps]
    assert sum(written) == 9 and max(written) == 3, "a slice has room for 8 calls with one result each"


@pytest.mark.parametrize("again", [False, True], ids=["first call", "later call"])
def test_a_call_on_several_workers_that_writes_over_its_own_operand_is_refused(spread: Conversation, again: bool) -> None:
    """A worker's part of it is several programs, the first of which would write over operands of the last one."""
    trace = TraceDef(6, 2, [(2, 3, 1, 2), (2, 4, 3, 2)], (3, 4))
    spread("a", Batch(2, (), [(2, 8, 1, 1)], traces=(trace,)))
    if again:
        spread("a", Batch(3, (), [(6, 20, 21, 1, 8)]))
    mails = spread("a", Batch(4, (), [(6, 8, 9, 1, 8)], ((7, 9, PAIR),))) + spread.turns()
    [failed] = [mail.message for mail in mails if isinstance(mail.message, Failed)]
    assert failed.ticket == 7 and "one tensor as an operand and as a result" in failed.text


def test_a_message_drops_no_more_than_a_client_can_have(spread: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "KNOWN", 8)
    assert spread("a", Batch(2, (), [], drops=tuple(range(50, 58)))) == []
    [bye, *_] = spread("a", Batch(3, (), [], drops=tuple(range(50, 59))))
    assert isinstance(bye.message, Bye) and "9 dropped traces: the most are 8" in bye.message.why


def concatenated(talk: Conversation, count: int, distinct: bool = False) -> list[Mail]:
    """Rows of tensors on both workers, put together."""
    sizes = [4 + 2 * n * distinct for n in range(count)]
    makes = [KindDef(20 + n, "full", ((-3,),), ((size, 4), F), "rows") for n, size in enumerate(sizes)]
    cat = KindDef(10, "cat", tuple((F, size, 4) for size in sizes), (0,))
    code: list[tuple] = [(20 + n, 20 + n, 1.0) for n in range(count)]
    mails = talk("a", Batch(2, (*makes, cat), [*code, (10, 9, *range(20, 20 + count))], ((7, 9, (F, sum(sizes), 4)),)))
    return mails + talk.turns()


def test_operands_that_move_alike_are_compared_once(spread: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple] = []
    parts = redistribute._parts
    monkeypatch.setattr(redistribute, "_parts", lambda *args: compared.append(args) or parts(*args))  # type: ignore[func-returns-value]
    assert {get.ticket for get in gets(concatenated(spread, 30))} == {7}
    assert len(compared) == 1


@pytest.mark.parametrize("module, limit, why", [
    (steps, "RESERVED", "moves more than 8 pieces"), (steps, "STEPS", "more than 8 steps"),
    (redistribute, "EXCHANGED", "operands of different shapes or layouts"),
])  # fmt: skip
def test_an_op_that_moves_too_much_is_refused_with_the_reason(
    spread: Conversation, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, why: str
) -> None:
    monkeypatch.setattr(module, limit, 8)
    [failed] = [mail.message for mail in concatenated(spread, 10, distinct=True) if isinstance(mail.message, Failed)]
    assert failed.ticket == 7 and why in failed.text
    assert len(code(spread("a", Batch(3, (), [(2, 3, 1, 1)])))) == 1, "others are carried out"


def test_the_bytes_of_a_client_that_leaves_are_subtracted_once_for_tensors_that_are_alike(spread: Conversation) -> None:
    spread("a", Batch(2, (), [(1, id, 1.0) for id in range(10, 10 + SLICE)]))
    assert [w.bytes for w in spread.tables.living()] == [32 * (SLICE + 2)] * 2
    spread.gone("a")
    assert [w.bytes for w in spread.tables.living()] == [32] * 2


def test_equal_operands_are_found_in_one_pass() -> None:
    """Thousands of operands are not compared with one another."""

    class Compared(int):
        count = 0

        def __eq__(self, other: object) -> bool:
            Compared.count += 1
            return int(self) == int(other)  # type: ignore[call-overload]

        __hash__ = int.__hash__

    ids = tuple(Compared(i % 100) for i in range(1000))
    assert sharding.alias((7, 7, *ids), tuple(range(2, 1002))) == tuple(i % 100 for i in range(1000))
    assert Compared.count <= 1000
