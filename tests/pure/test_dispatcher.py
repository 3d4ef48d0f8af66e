"""The dispatcher's decisions, as conversations. Its invariants are checked after every message."""

from __future__ import annotations

import pytest
from conversation import Conversation
from hypothesis import given
from hypothesis import strategies as st

from gt import __version__
from gt.dispatcher import signals
from gt.dispatcher.core import Dispatcher
from gt.errors import ProtocolError
from gt.program.code import FREE
from gt.spec import float32
from gt.transport import checks
from gt.transport.events import Spans, WorkerReport
from gt.transport.messages import (
    VERSION,
    Ack,
    Answer,
    Arrived,
    Ask,
    Batch,
    Begun,
    Bye,
    Came,
    Configure,
    Done,
    Drop,
    Failed,
    Fetch,
    Hello,
    Join,
    KindDef,
    Mail,
    Peer,
    Peers,
    Progress,
    Refuse,
    Run,
    Skip,
    TraceDef,
    Upload,
    Welcome,
)  # fmt: skip

F = float32.code
PAIR = (F, 2, 2)
FULL = KindDef(1, "full", ((-3,),), ((2, 2), F))
ADD = KindDef(2, "add", (PAIR, PAIR), ())
LOAD = KindDef(3, "load", ((-2,), (-2,), (-2,)), ((2, 2), (2, 2), (0, 0), F))
W0, W1 = Peer(0, "w0", "ipc://w0", "here", "cpu"), Peer(1, "w1", "ipc://w1", "here", "cpu")


def read(ticket: int, id: int) -> tuple:
    return (ticket, id, PAIR)


def fetch(ticket: int, id: int) -> Fetch:
    return Fetch(ticket, id, PAIR, (0, 0), (2, 2))


@pytest.fixture
def two(talk: Conversation) -> Conversation:
    """A worker, a client that has made tensor 1."""
    talk.worker()
    talk.client()
    talk("c", Batch(1, (FULL, ADD), [(1, 1, 0.5)]))
    return talk


# Who is there


def test_a_client_is_welcomed_with_the_workers_there_are(talk: Conversation) -> None:
    assert talk.worker() == [Mail("w0", Welcome("w0", 0))]
    assert talk.client() == [Mail("c", Welcome("c", 1, (W0,)))]


def test_a_worker_that_comes_later_is_made_known_to_clients(talk: Conversation) -> None:
    talk.client()
    assert talk.worker() == [Mail("w0", Welcome("w0", 0)), Mail("c", Peers((W0,)))]


def test_two_workers_of_one_name_get_different_names(talk: Conversation) -> None:
    talk.worker("p0", "same")
    welcome = talk.worker("p1", "same")[0].message
    assert welcome.index == 1 and welcome.name != "same"


def test_a_wrong_version_is_refused_and_said_so(talk: Conversation) -> None:
    [mail] = talk("c", Hello(VERSION + 1, "", "here", 7))
    assert isinstance(mail.message, Bye) and "version" in mail.message.why
    [mail] = talk("w", Join(VERSION + 1, "", "w", "numpy", "cpu", "here", 8, "ipc://at"))
    assert isinstance(mail.message, Bye)
    assert not talk.tables.clients and not talk.tables.workers and talk.tables.dropped == 2


@pytest.mark.parametrize(
    "message",
    [
        Batch(1, (), []),
        Ask(1, "stats"),
        Done("c", 1),
        Configure({}),
        Bye(),
        Arrived("c", 1),
        Ack(1),
        Answer(1, None),
        Drop("c"),
        Begun(1, ()),
        Refuse("c", "why"),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_stranger_s_message_is_dropped_and_counted(two: Conversation, message: object) -> None:
    before = two.tables.dropped
    assert two("stranger", message) == []
    assert two.tables.dropped == before + 1


def test_messages_of_workers_are_not_taken_from_clients_nor_the_other_way(two: Conversation) -> None:
    before = two.tables.dropped
    assert (
        two("c", Done("c", 1))
        == two("c", Arrived("c", 1))
        == two("w0", Batch(1, (), []))
        == two("c", Run("c", 1, (), []))
        == []
    )
    assert two("c", Hello(VERSION, "", "here", 7)) == [] and two("w0", Join(VERSION, "", "w", "", "", "", 1, "")) == []
    assert two.tables.dropped == before + 6


# The stream


def test_an_instruction_goes_to_the_client_s_worker_with_the_kinds_it_names(talk: Conversation) -> None:
    talk.worker()
    talk.client()
    got = talk("c", Batch(1, (FULL, ADD), [(1, 1, 0.5), (2, 2, 1, 1)]))
    assert got == [Mail("w0", Run("c", 1, (FULL, ADD), [(1, 1, 0.5), (2, 2, 1, 1)]))]


def test_a_worker_is_told_of_a_kind_once(two: Conversation) -> None:
    two("c", Batch(2, (), [(2, 2, 1, 1)]))
    assert two("c", Batch(3, (), [(2, 3, 1, 1)])) == [Mail("w0", Run("c", 3, (), [(2, 3, 1, 1)]))]


def test_frees_ride_along_and_are_forgotten(two: Conversation) -> None:
    assert two("c", Batch(2, (), [(FREE, 1)])) == [Mail("w0", Run("c", 2, (), [(FREE, 1)]))]
    assert not two.tables.clients["c"].entries


def test_freeing_an_unknown_tensor_is_harmless(two: Conversation) -> None:
    assert two("c", Batch(2, (), [(FREE, 99)])) == []


def test_nothing_is_acknowledged_unless_asked(two: Conversation) -> None:
    [mail] = two("c", Batch(2, (), [(2, 2, 1, 1)]))
    assert mail.message.ack is False and two("w0", Done("c", 2)) == []


def test_an_acknowledgement_comes_when_the_worker_is_done(two: Conversation) -> None:
    [mail] = two("c", Batch(2, (), [(2, 2, 1, 1)], (), True))
    assert mail.message.ack is True
    assert two("w0", Done("c", 2)) == [Mail("c", Ack(2))]
    assert two("w0", Done("c", 2)) == []


def test_a_read_is_sent_to_the_worker_that_holds_the_tensor(two: Conversation) -> None:
    assert two("c", Batch(2, (), [], (read(9, 1),))) == [Mail("w0", Run("c", 2, (), [], (fetch(9, 1),)))]


def test_a_read_of_an_unknown_tensor_fails_at_once(two: Conversation) -> None:
    [mail] = two("c", Batch(2, (), [], (read(9, 77),)))
    assert mail.peer == "c" and isinstance(mail.message, Failed) and mail.message.ticket == 9


def test_clients_do_not_see_each_other_s_tensors(two: Conversation) -> None:
    two.client("other")
    [mail] = two("other", Batch(1, (), [], (read(9, 1),)))
    assert mail.peer == "other" and isinstance(mail.message, Failed)
    two("other", Batch(2, (FULL,), [(1, 1, 2.0)]))
    two("other", Batch(3, (), [(FREE, 1)]))
    assert 1 in two.tables.clients["c"].entries


def test_one_client_s_acknowledgement_never_goes_to_another(two: Conversation) -> None:
    two.client("other")
    two("c", Batch(5, (), [(2, 2, 1, 1)], (), True))
    two("other", Batch(5, (FULL,), [(1, 1, 2.0)], (), True))
    assert two("w0", Done("other", 5)) == [Mail("other", Ack(5))]
    assert two("w0", Done("c", 5)) == [Mail("c", Ack(5))]


def test_clients_are_spread_over_workers(talk: Conversation) -> None:
    talk.worker("w0")
    talk.worker("w1")
    talk.client("a")
    talk.client("b")
    [first] = talk("a", Batch(1, (FULL,), [(1, 1, 0.5)]))
    [second] = talk("b", Batch(1, (FULL,), [(1, 1, 0.5)]))
    assert {first.peer, second.peer} == {"w0", "w1"}


def test_work_waits_for_the_first_worker(talk: Conversation) -> None:
    talk.client()
    assert talk("c", Batch(1, (FULL,), [(1, 1, 0.5)])) == []
    assert talk("c", Batch(2, (), [], (read(9, 1),))) == []
    assert talk.worker()[2:] == [
        Mail("w0", Run("c", 1, (FULL,), [(1, 1, 0.5)])),
        Mail("w0", Run("c", 2, (), [], (fetch(9, 1),))),
    ]


def test_kinds_are_forgotten_one_bound_late(two: Conversation) -> None:
    """A thread may still be about to name a kind when the client forgets it, so the dispatcher keeps it one round more."""
    two("c", Batch(2, (), [(2, 2, 1, 1)], forget=3))
    assert set(two.tables.clients["c"].uses) == {FREE, 1, 2}
    two("c", Batch(3, (KindDef(5, "add", (PAIR, PAIR), ()),), [(5, 3, 1, 1)], forget=6))
    assert set(two.tables.clients["c"].uses) == {FREE, 5}


# Traces

TWICE = TraceDef(7, 1, [(2, 2, 1, 1), (2, 3, 2, 1), (FREE, 2)], (3,), (), ())


def test_a_trace_is_told_with_its_kinds_and_called_by_one_instruction(two: Conversation) -> None:
    assert two("c", Batch(2, (), [(7, 9, 1)], (read(8, 9),), traces=(TWICE,))) == [
        Mail("w0", Run("c", 2, (ADD,), [(7, 9, 1)], (fetch(8, 9),), traces=(TWICE,)))
    ]
    assert two("c", Batch(3, (), [(7, 10, 9)])) == [Mail("w0", Run("c", 3, (), [(7, 10, 9)]))]


def test_inputs_that_end_with_a_call_are_forgotten(two: Conversation) -> None:
    two("c", Batch(2, (), [(7, 9, 1)], traces=(TraceDef(7, 1, [(2, 2, 1, 1), (FREE, 1)], (2,), (), (0,)),)))
    assert set(two.tables.clients["c"].entries) == {9}


def test_inputs_that_were_to_end_with_a_call_end_where_another_input_is_lost(talk: Conversation) -> None:
    talk.worker("w0")
    talk.worker("w1")
    talk.client()
    talk("c", Configure({f"on{i}": {"mesh": None, "axes": [None], "workers": [i]} for i in (0, 1)}))
    kinds = [KindDef(1 + i, "full", ((-3,),), ((2, 2), F), f"on{i}") for i in (0, 1)]
    talk("c", Batch(1, (*kinds, KindDef(3, "add", (PAIR, PAIR), ())), [(1, 1, 0.5), (2, 2, 0.5)]))
    talk.gone("w1")
    trace = TraceDef(7, 2, [(3, 3, 1, 2), (FREE, 1), (FREE, 2)], (3,), (), (0, 1))
    assert talk("c", Batch(2, (), [(7, 9, 1, 2)], traces=(trace,))) == [Mail("w0", Run("c", 2, (), [(FREE, 1)]))]
    assert set(talk.tables.clients["c"].entries) == {9}


def test_a_dropped_trace_is_forgotten(two: Conversation) -> None:
    two("c", Batch(2, (), [(7, 9, 1)], traces=(TWICE,)))
    two("c", Batch(3, (), [], drops=(7,)))
    assert 7 not in two.tables.clients["c"].uses


@pytest.mark.parametrize(
    "wrong",
    [
        TraceDef(7, -1, [], ()),
        TraceDef(7, 10**12, [(2, 2, 1, 1)], ()),
        TraceDef(7, 1, [()], ()),
        TraceDef(7, 1, [(FREE,)], ()),
        TraceDef(7, 1, [(FREE, 5)], ()),
        TraceDef(7, 1, [(FREE, 1), (2, 2, 1, 1)], (2,)),
        TraceDef(7, 1, [(42, 2, 1, 1)], (2,)),
        TraceDef(7, 1, [(2.0, 2, 1, 1)], (2,)),
        TraceDef(7, 1, [(2, 2, 1)], (2,)),
        TraceDef(7, 1, [(2, 2, 1, 9)], (2,)),
        TraceDef(7, 1, [(2, 2, 1, 1.0)], (2,)),
        TraceDef(7, 1, [(2, 2.5, 1, 1)], ()),
        TraceDef(7, 1, [(2, 1, 1, 1)], (1,)),
        TraceDef(7, 1, [(2, 2, 1, 1), (2, 2, 1, 1)], (2,)),
        TraceDef(7, 1, [(2, 2, 1, 1)], (3,)),
        TraceDef(7, 1, [(2, 2, 1, 1)], (2, 2)),
        TraceDef(7, 1, [(2, 2, 1, 1)], (2,), ((0, 2),)),
        TraceDef(7, 1, [(2, 2, 1, 1)], (2,), ((5, 2),)),
        TraceDef(7, 0, [(1, 1, 0.5)], (1,), ((0, 2), (0, 2))),
        TraceDef(7, 1, [(2, 2, 1, 1)], (2,), (), (1,)),
        TraceDef(7, 1, [(2, 2, 1, 1)], (2,), (), (0, 0)),
        TraceDef(7, 0, [(3, 1, -1, 0, 0)], (1,)),
        TraceDef(2, 1, [(2, 2, 1, 1)], (2,)),
        TraceDef(0, 1, [(2, 2, 1, 1)], (2,)),
    ],
    ids=str,
)
def test_a_trace_that_cannot_be_is_dropped_and_counted(two: Conversation, wrong: TraceDef) -> None:
    two("c", Batch(2, (LOAD,), []))
    before = two.tables.dropped
    assert two("c", Batch(3, (), [], traces=(wrong,))) == []
    assert two.tables.dropped == before + 1


# Uploads


def test_an_upload_holds_the_stream_until_its_bytes_arrive(talk: Conversation) -> None:
    talk.worker()
    talk.client()
    code = [(3, 1, -1, 0, 0), (2, 2, 1, 1)]
    assert Mail("c", Upload("c", 1, PAIR, (0,), (((0, 0), (2, 2)),))) in talk("c", Batch(1, (LOAD, ADD), code))
    assert talk.tables.clients["c"].loading == 1
    assert talk("c", Batch(2, (), [(FREE, 1)])) == []
    runs = [m.message for m in talk("w0", Arrived("c", 1))]
    assert [ins for run in runs for ins in run.code] == [(3, 1, -1, 1, 0), (2, 2, 1, 1), (FREE, 1)]


def test_a_worker_lost_during_an_upload_lets_the_stream_go_on(talk: Conversation) -> None:
    talk.worker("w0")
    talk.client()
    talk("c", Batch(1, (LOAD, ADD), [(3, 1, -1, 0, 0), (2, 2, 1, 1)]))
    talk.worker("w1")
    talk("c", Batch(2, (FULL,), [(1, 3, 0.5)], (read(9, 2),)))
    mails = talk.gone("w0")
    assert any(m.peer == "c" and isinstance(m.message, Failed) and m.message.error == "WorkerLost" for m in mails)
    assert any(m.peer == "w1" for m in mails)


# Bad days


def test_a_client_that_goes_has_all_it_owned_freed(two: Conversation) -> None:
    two.client("other")
    assert two.gone("c") == [Mail("w0", Drop("c"))]
    assert set(two.tables.clients) == {"other"}
    assert two("c", Bye()) == []


def test_workers_are_told_up_to_where_collectives_of_a_client_that_is_gone_were_begun(talk: Conversation) -> None:
    for name in ("w0", "w1", "w2"):
        talk.worker(name)
    talk.client()
    assert talk.gone("c") == [Mail(w, Drop("c", 1)) for w in ("w0", "w1", "w2")]
    assert talk("w0", Begun(1, (((0, 1), 5), ((0, 2), 1)))) == []
    assert talk("w0", Begun(1, (((0, 1), 50),))) == []  # it has said so already
    assert talk("w1", Begun(1, (((0, 1), 4), ((1, 2), 7)))) == []
    counts = (((0, 1), 5), ((0, 2), 3), ((1, 2), 7))
    assert talk("w2", Begun(1, (((0, 2), 3),))) == [Mail(w, Skip(1, counts)) for w in ("w0", "w1", "w2")]
    assert not talk.tables.leaving


def test_a_lost_worker_is_not_waited_for_before_collectives_are_skipped(talk: Conversation) -> None:
    talk.worker("w0")
    talk.worker("w1")
    talk.client()
    talk.gone("c")
    talk("w0", Begun(1, (((0, 1), 5),)))
    assert Mail("w0", Skip(1, (((0, 1), 5),))) in talk.gone("w1")
    talk.client("d")
    talk.gone("d")
    talk.gone("w0")
    assert not talk.tables.leaving


def test_a_client_that_is_far_ahead_of_a_worker_is_held_back_until_that_has_caught_up(two: Conversation) -> None:
    code = [(2, 5, 1, 1)] * 4096
    sent = sum(bool(two("c", Batch(serial, (), code))) for serial in range(2, 30))
    assert sent == 16  # with the first tensor, more than 65,536 instructions
    assert len(two.tables.clients["c"].held) == 12
    assert [mail.message.serial for mail in two("w0", Progress("c", 8192))] == [18, 19]
    assert len(two.tables.clients["c"].held) == 10
    assert len(two("w0", Progress("c", 1 << 20)) + two.turns()) == 10
    two("c", Batch(40, (), code, (read(9, 1),)))
    assert two("w0", Progress("nobody", 1)) == []


def test_reads_and_empty_batches_count_as_work_under_way(two: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = tuple(read(ticket, 1) for ticket in range(4096))
    assert sum(bool(two("c", Batch(serial, (), [], reads))) for serial in range(2, 30)) == 16
    two.client("d")
    two("d", Batch(1, (FULL,), [(1, 1, 0.5)]))
    monkeypatch.setattr(checks, "AHEAD", 100)
    assert sum(bool(two("d", Batch(serial, (), [], (), True))) for serial in range(2, 300)) == 99


def test_questions_that_workers_have_not_answered_are_bounded(two: Conversation) -> None:
    for ticket in range(256):
        [mail] = two("c", Ask(ticket, "stats"))
        assert mail.peer == "w0"
    [mail] = two("c", Ask(256, "stats"))
    assert mail.peer == "c" and mail.message.ticket == 256 and "256 questions" in mail.message.text


def test_a_client_that_sends_on_and_on_is_let_go(two: Conversation) -> None:
    serial = 2
    while "c" in two.tables.clients:
        mails = two("c", Batch(serial, (), [(2, 5, 1, 1)] * 65536))
        serial += 1
    assert serial == 19 and "instructions wait" in mails[0].message.why
    two.client("d")
    [bye, _] = two("d", Batch(1, (), [(2, 5, 1, 1)] * 65537))
    assert "the most are 65536" in bye.message.why


def test_a_worker_that_is_lost_holds_nobody_back(talk: Conversation) -> None:
    talk.worker("w0")
    talk.client()
    talk("c", Batch(1, (FULL,), [(1, 1, 0.5)] * 65536))
    talk.turns()
    talk("c", Batch(2, (), [(1, 1, 0.5)]))
    assert talk("c", Batch(3, (), [(1, 2, 0.5)])) == []
    talk.worker("w1")
    assert any(m.peer == "w1" and isinstance(m.message, Run) for m in talk.gone("w0"))


def test_only_traces_are_dropped_and_the_bound_below_which_kinds_go_only_rises(two: Conversation) -> None:
    """Not all workers hear of it, and all must drop it alike: one of them would begin a collective
    inside a trace that the other could not make."""
    [mail] = two("c", Batch(2, (), [(2, 2, 1, 1)], drops=(2,)))
    assert mail.message.drops == () and 2 in two.tables.clients["c"].uses
    [mail] = two("c", Batch(3, (), [(2, 3, 1, 1)], forget=2))
    assert mail.message.forget == 2
    [mail] = two("c", Batch(4, (), [(2, 4, 1, 1)], forget=1))
    assert mail.message.forget == 0
    [mail] = two("c", Batch(5, (), [(2, 5, 1, 1)], forget=-5))
    assert mail.message.forget == 0


def test_a_client_that_a_worker_refuses_is_let_go(two: Conversation) -> None:
    bye, drop = two("w0", Refuse("c", "it takes nothing"))
    assert "refused by worker w0: it takes nothing" in bye.message.why and drop == Mail("w0", Drop("c"))
    assert two("w0", Refuse("c", "again")) == []


def test_the_tensors_of_a_client_that_leaves_are_freed_at_once(two: Conversation) -> None:
    assert two("c", Bye()) == [Mail("w0", Drop("c"))]


def test_a_lost_worker_is_named_to_who_reads_from_it(two: Conversation) -> None:
    [mail] = two.gone("w0")
    assert mail == Mail("c", Peers((), mail.message.lost)) and "w0" in mail.message.lost
    two.worker("w1")
    [mail] = two("c", Batch(3, (), [], (read(9, 1),)))
    assert mail.message.error == "WorkerLost" and "w0" in mail.message.text


def test_a_result_of_a_lost_tensor_is_lost_for_the_same_reason(two: Conversation) -> None:
    two.gone("w0")
    two.worker("w1")
    [mail] = two("c", Batch(3, (), [(2, 2, 1, 1)], (read(9, 2),)))
    assert mail.message.error == "WorkerLost" and "w0" in mail.message.text


def test_a_read_of_a_lost_tensor_is_answered_while_there_is_no_worker(two: Conversation) -> None:
    two.gone("w0")
    [mail] = two("c", Batch(2, (), [(2, 2, 1, 1)], (read(8, 1), read(9, 2))))[:1]
    assert mail.message.error == "WorkerLost" and "w0" in mail.message.text


def test_an_op_without_a_worker_waits_and_a_read_of_a_lost_tensor_does_not(two: Conversation) -> None:
    two.gone("w0")
    assert two("c", Batch(2, (), [(1, 5, 0.5)], (read(7, 5),))) == []
    [mail] = two("c", Batch(3, (), [], (read(8, 1),)))
    assert mail.message.error == "WorkerLost" and mail.message.ticket == 8
    runs = [m.message for m in two.worker("w1") if isinstance(m.message, Run)]
    assert [(r.code, r.gets) for r in runs] == [([(1, 5, 0.5)], (fetch(7, 5),))]


def test_a_replacement_takes_new_work(two: Conversation) -> None:
    two.gone("w0")
    two.worker("w1")
    assert two("c", Batch(3, (), [(1, 5, 0.5)], (read(9, 5),))) == [
        Mail("w1", Run("c", 3, (FULL,), [(1, 5, 0.5)], (fetch(9, 5),)))
    ]


def test_a_read_of_an_op_on_a_lost_tensor_is_answered_though_its_batch_waits_for_a_worker(two: Conversation) -> None:
    two.gone("w0")
    code = [(1, 5, 0.5), (2, 6, 5, 1), (2, 7, 6, 5), (2, 8, 5, 5)]  # tensor 1 is lost
    [mail] = two("c", Batch(2, (), code, (read(9, 7), read(10, 8))))
    assert (mail.message.error, mail.message.ticket) == ("WorkerLost", 9) and "w0" in mail.message.text
    [mail] = two("c", Batch(3, (), [(2, 9, 7, 5)], (read(11, 9), read(12, 5))))  # behind the first batch
    assert (mail.message.error, mail.message.ticket) == ("WorkerLost", 11) and "w0" in mail.message.text
    runs = [mail.message for mail in two.worker("w1") if isinstance(mail.message, Run)]
    assert [get.ticket for run in runs for get in run.gets] == [10, 12]


def test_acknowledgements_do_not_wait_for_a_lost_worker(two: Conversation) -> None:
    two("c", Batch(2, (), [(2, 2, 1, 1)], (), True))
    assert Mail("c", Ack(2)) in two.gone("w0")


def test_an_instruction_with_an_unknown_operand_fails_only_its_own_results(two: Conversation) -> None:
    before = two.tables.dropped
    got = two("c", Batch(2, (), [(2, 5, 1, 77), (42, 6, 1), (2, 7, 1, 1)], (read(8, 5), read(9, 7))))
    assert two.tables.dropped == before + 2
    assert any(isinstance(m.message, Failed) and m.message.ticket == 8 for m in got)
    assert any(isinstance(m.message, Run) and m.message.gets == (fetch(9, 7),) for m in got)


def test_a_false_kind_is_dropped_and_the_client_goes_on(two: Conversation) -> None:
    before = two.tables.dropped
    two("c", Batch(2, (KindDef(9, "no such op", (), ()),), [(9, 9)]))
    assert two.tables.dropped > before
    assert two("c", Batch(3, (), [], (read(9, 1),))) == [Mail("w0", Run("c", 3, (), [], (fetch(9, 1),)))]


numbers = st.integers(-3, 80) | st.booleans() | st.floats(allow_nan=False, width=16)
instructions = st.lists(numbers, max_size=6).map(tuple)
wires = st.lists(st.integers(-5, 12), max_size=4).map(tuple)
gets = st.tuples(st.integers(-3, 80), st.integers(-3, 80), wires)


@given(st.lists(st.tuples(st.lists(instructions, max_size=4), st.lists(gets, max_size=2)), max_size=4))
def test_no_instruction_whatever_can_hurt_the_dispatcher_or_another_client(batches: list) -> None:
    talk = Conversation()
    talk.worker()
    talk.client("bad")
    talk.client("good")
    talk("good", Batch(1, (FULL, ADD), [(1, 1, 0.5)]))
    talk("bad", Batch(1, (FULL, ADD, LOAD), []))
    for serial, (code, reads) in enumerate(batches, 2):
        for mail in talk("bad", Batch(serial, (), code, tuple(reads))):
            assert mail.peer in ("bad", "w0")
    assert talk("good", Batch(2, (), [], (read(9, 1),))) == [Mail("w0", Run("good", 2, (), [], (fetch(9, 1),)))]


# Questions


def test_a_question_about_stats_is_answered_by_every_worker(two: Conversation) -> None:
    two.worker("w1")
    asked = two("c", Ask(3, "stats"))
    assert [m.peer for m in asked] == ["w0", "w1"]
    ticket = asked[0].message.ticket
    assert two("w0", Answer(ticket, {"ops": {"add": 1}})) == []
    [mail] = two("w1", Answer(ticket, {"ops": {}}))
    assert mail.peer == "c" and mail.message.ticket == 3
    assert mail.message.value["workers"]["w0"]["ops"] == {"add": 1} and mail.message.value["workers"]["w1"]["index"] == 1


def test_a_question_does_not_wait_for_a_lost_worker(two: Conversation) -> None:
    two.worker("w1")
    ticket = two("c", Ask(3, "stats"))[0].message.ticket
    two("w0", Answer(ticket, {}))
    assert any(isinstance(m.message, Answer) and m.message.ticket == 3 for m in two.gone("w1"))


def test_a_question_about_stats_waits_for_the_workers_that_are_expected(talk: Conversation) -> None:
    talk.dispatcher.expect(2)
    talk.client()
    talk.worker("w0")
    assert talk("c", Ask(3, "stats")) == []
    asked = [m for m in talk.worker("w1") if isinstance(m.message, Ask)]
    assert [m.peer for m in asked] == ["w0", "w1"]


def test_a_question_about_workers_that_do_not_come_is_answered_when_they_are_given_up(talk: Conversation) -> None:
    talk.dispatcher.expect(1)
    talk.client()
    assert talk("c", Ask(3, "stats")) == []
    [mail] = talk.dispatcher.expect(0)
    assert mail.peer == "c" and mail.message.value["workers"] == {}


def test_a_question_about_stats_without_workers_is_answered_at_once(talk: Conversation) -> None:
    talk.client()
    [mail] = talk("c", Ask(3, "stats"))
    assert mail.message.value["workers"] == {}


def test_an_unknown_question_is_answered_with_an_error(two: Conversation) -> None:
    [mail] = two("c", Ask(3, "the weather"))
    assert isinstance(mail.message, Failed) and "the weather" in mail.message.text


def test_who_watches_sees_batches_and_their_end() -> None:
    seen: list[tuple[str, str]] = []
    d = Dispatcher(watch=lambda event, who, what: seen.append((event, who)))
    d.handle(Mail("w0", Join(VERSION, "", "w0", "numpy", "cpu", "here", 8, "ipc://at")))
    d.handle(Mail("c", Hello(VERSION, "", "here", 7)))
    d.handle(Mail("c", Batch(1, (FULL,), [(1, 1, 0.5)])))
    d.handle(Mail("w0", WorkerReport((Spans("c", b"", b"", b"", b""),))))
    d.lose("c", "it left")
    d.lose("w0", "it left")
    joined = [("event", "")] * 2
    assert seen == [*joined, ("batch", "here:7"), ("run", "w0"), ("spans", "w0"), ("gone", "here:7"), ("lost", "w0")]


def test_comings_and_goings_are_told_in_words() -> None:
    lines: list[str] = []
    d = Dispatcher(tell=lines.append)
    d.handle(Mail("w0", Join(VERSION, "", "w0", "numpy", "cpu", "there", 8, "ipc://at")))
    d.handle(Mail("c", Hello(VERSION, "", "here", 7)))
    d.handle(Mail("x", Hello(VERSION + 1, "", "here", 9)))
    d.lose("w0", "its connection ended")
    d.lose("c", "it left")
    assert lines == [
        "worker w0 joined with index 0: numpy on cpu, there",
        "client here:7 joined",
        f"a client was refused: protocol version {VERSION + 1} is not the dispatcher's, {VERSION}: "
        "install the same version of GT",
        "worker w0 (index 0) was lost: its connection ended",
        "client here:7 left",
    ]


def test_a_number_has_one_meaning_for_good(two: Conversation) -> None:
    before = two.tables.dropped
    for number in (1, 0, -4):
        assert two("c", Batch(2, (KindDef(number, "exp", (PAIR,), ()),), [])) == []
    assert two.tables.dropped == before + 3
    assert two("c", Batch(3, (), [(1, 5, 0.5)])) == [Mail("w0", Run("c", 3, (), [(1, 5, 0.5)]))]


def test_batches_that_wait_for_a_worker_run_in_the_order_they_came(talk: Conversation) -> None:
    """Signals that change between two batches hold for the second alone, however many do."""
    talk.dispatcher.expect(2)
    talk.client()

    def shard(axis: int) -> Configure:
        return Configure({"s": {"mesh": None, "axes": [axis], "workers": None}})

    full = KindDef(1, "full", ((-3,),), ((2, 2), F), "s")
    assert talk("c", Batch(1, (full,), [(1, 1, 0.5)])) == []
    first, second = (Ask(ticket, "placement", [id, *PAIR]) for ticket, id in ((5, 1), (6, 2)))
    for message in (first, shard(0), shard(1), Batch(2, (), [(1, 2, 0.5)]), second, shard(0)):
        assert talk("c", message) == []
    talk.worker("w0")
    said = [m.message for m in talk.worker("w1")]
    answers = {m.ticket: m.value for m in said if isinstance(m, Answer)}
    assert "Shard(1) on [0, 1]" in str(answers[6]) and "Shard" not in str(answers[5]), answers
    assert [m.serial for m in said if isinstance(m, Run)] == [1, 2, 2]


def test_a_wrong_batch_that_waited_costs_its_client_alone(talk: Conversation) -> None:
    talk.client()
    talk("c", Batch(1, (FULL,), [(1, 1, 0.5)]))
    talk("c", Configure({"s": 7}))
    talk("c", Batch(2, (), [(99, 2, 0.5)]))
    talk("c", Batch(3, (), [(1, 3, 0.5)]))
    said = talk.worker()
    assert said[0] == Mail("w0", Welcome("w0", 0)) and talk.tables.dropped == 2
    assert [m.message.serial for m in said if isinstance(m.message, Run)] == [1, 3]


@pytest.mark.parametrize("workers", [[0, 0], [0, 1, 0], [-1], [True], [], 0])
def test_a_signal_names_different_workers_by_number(workers: object) -> None:
    with pytest.raises(ProtocolError, match="invalid configuration of signal 's'"):
        signals.check({"s": {"mesh": None, "axes": [0], "workers": workers}})


def test_bytes_of_one_kind_are_now_sent_and_now_placed(talk: Conversation) -> None:
    """A client sends them while it does not know whether a worker shares memory, and places them when it does."""
    talk.worker("w0")
    talk.worker("w1")
    talk.client()
    talk("c", Configure({"s": {"mesh": None, "axes": [0], "workers": None}}))
    load = KindDef(3, "load", LOAD.ins, LOAD.statics, "s")
    said = talk("c", Batch(1, (load,), [(3, 1, -1, 0, 0)]))
    assert [m.message.workers for m in said if isinstance(m.message, Upload)] == [(0, 1)]
    for worker in ("w0", "w1"):
        talk(worker, Arrived("c", 1))
    said = talk("c", Batch(2, (), [(3, 2, 9, 0, 0)]))
    assert [m.peer for m in said if isinstance(m.message, Run) and m.message.code] == ["w0", "w1"]


def test_a_move_that_ends_after_its_tensor_was_lost_is_freed(talk: Conversation) -> None:
    talk.worker("w0")
    talk.worker("w1")
    talk.client()
    talk("c", Configure({"s": {"mesh": None, "axes": [0], "workers": None}}))
    talk("c", Batch(1, (KindDef(3, "load", LOAD.ins, LOAD.statics, "s"),), [(3, 1, -1, 0, 0)]))
    talk.gone("w1")
    assert talk("w0", Arrived("c", 1)) == [Mail("w0", Run("c", 0, (), [(-1, 1, -1, 1, 0), (FREE, 1)]))]
    assert not talk.tables.clients["c"].late


def test_workers_are_told_of_a_client_s_share_and_memory_later_workers_too(talk: Conversation) -> None:
    talk.worker()
    came = Mail("w0", Came("c", 8.0, 1 << 20, interactive=True))
    assert came in talk("c", Hello(VERSION, "", "here", 7, 2.0, "interactive", 1 << 20))
    assert Mail("w1", came.message) in talk.worker("w1")
    assert not [m for m in talk("d", Hello(VERSION, "", "here", 7)) if m.peer.startswith("w")], "an ordinary client"
    said = [m.message for m in talk("e", Hello(VERSION, "", "here", 7, 0.25, "interactive")) if m.peer == "w0"]
    assert said == [Came("e", interactive=True)], "by its priority, whatever its weight"
    assert Mail("w0", Came("f", 5.0)) in talk("f", Hello(VERSION, "", "here", 7, 5.0)), "and not by its weight"


@pytest.mark.parametrize("weight, priority", [(1e9, "normal"), (0.0, "normal"), (float("nan"), "normal"), (1.0, "urgent")])
def test_a_client_cannot_take_any_weight(weight: float, priority: str) -> None:
    with pytest.raises(ProtocolError, match="weight|priority"):
        checks.message(Hello(VERSION, "", "here", 7, weight, priority))


def test_a_full_dispatcher_refuses_another_client_with_the_reason(talk: Conversation) -> None:
    talk.tables.most_clients = 1
    talk.client("first")
    refused = talk.client("second")
    assert [m.peer for m in refused] == ["second"] and "second" not in talk.tables.clients
    assert "this dispatcher is full: it serves 1 clients" in refused[0].message.why
    talk("first", Bye())
    assert isinstance(talk.client("second")[0].message, Welcome)


def test_a_full_dispatcher_answers_health_checks_and_no_other_question_of_strangers(talk: Conversation) -> None:
    talk.tables.most_clients = 1
    talk.client("first")
    talk.worker("w0")
    name = talk.tables.living()[0].name
    for asked, known in ((name, True), ("another", False), ("", False), ([], False), (None, False)):
        [mail] = talk("stranger", Ask(7, "joined", asked))
        assert mail == Mail("stranger", Answer(7, known))
    dropped = talk.tables.dropped
    assert not talk("stranger", Ask(8, "stats")) and talk.tables.dropped == dropped + 1
    assert list(talk.tables.clients) == ["first"]


def test_workers_that_are_expected_are_told_of_once_when_all_are_there(talk: Conversation) -> None:
    talk.dispatcher.expect(3)
    talk.client()
    assert [m.peer for name in ("w0", "w1") for m in talk.worker(name)] == ["w0", "w1"], "a welcome each, and no more"
    assert [(m.peer, type(m.message)) for m in talk.worker("w2")] == [
        ("w2", Welcome), ("w0", Peers), ("w1", Peers), ("w2", Peers), ("c", Peers),
    ]  # fmt: skip


def test_workers_that_came_are_told_of_when_the_others_are_given_up(talk: Conversation) -> None:
    talk.dispatcher.expect(3)
    talk.client()
    talk.worker("w0"), talk.worker("w1")
    assert [m.peer for m in talk.dispatcher.expect(0) if isinstance(m.message, Peers)] == ["w0", "w1", "c"]


def test_workers_of_another_patch_join_and_those_of_another_release_are_refused_with_both_named(talk: Conversation) -> None:
    own = __version__.split(".")

    def join(name: str, release: str) -> list[Mail]:
        return talk(name, Join(VERSION, "", name, "numpy", "cpu", "here", 8, f"ipc://{name}", "", release))

    newer, other = ".".join([*own[:2], "99"]), ".".join([own[0], str(int(own[1]) + 1), "0"])
    assert isinstance(join("w0", newer)[0].message, Welcome)
    [refused] = join("w1", other)
    assert f"GT {other} does not fit GT {__version__}" in refused.message.why and len(talk.tables.workers) == 1
