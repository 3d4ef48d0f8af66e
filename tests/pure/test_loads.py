"""Loads wait for their client at the dispatcher; the work of other clients does not."""

from __future__ import annotations

from conversation import Conversation

from gt.dispatcher import patience
from gt.program.code import FREE
from gt.spec import float32
from gt.transport.messages import Arrived, Attached, Batch, Configure, Drain, Drop, KindDef, Mail, Note, Run, Upload

F = float32.code
ROWS = {"rows": {"mesh": None, "axes": [0], "workers": None}}
LOAD = KindDef(1, "load", ((-2,), (-2,), (-2,)), ((2, 2), (2, 2), (0, 0), F), "rows")
SUM = KindDef(2, "sum", ((F, 2, 2),), ((0,), False))
KINDS, CODE = (LOAD, SUM), [(1, 1, 9, 0, 0), (2, 2, 1)]
READ = ((5, 2, (F, 2)),)


def code(mails: list[Mail]) -> dict[str, list[int]]:
    """The client and number of instructions of all that workers are to execute."""
    ran: dict[str, list[int]] = {}
    for mail in mails:
        if isinstance(mail.message, Run) and mail.message.code:
            ran.setdefault(f"{mail.peer} {mail.message.client}", []).append(len(mail.message.code))
    return ran


def sharded(talk: Conversation) -> Conversation:
    """Two workers, a client that has connected to them, and one that has not."""
    for worker in ("w0", "w1"):
        talk.worker(worker)
    for client in ("near", "far"):
        talk.client(client, attach=client == "near")
        talk(client, Configure(ROWS))
    return talk


def test_a_sharded_load_has_no_place_in_the_order_of_collectives_before_its_client_has_connected(talk: Conversation) -> None:
    sharded(talk)
    assert code(talk("far", Batch(1, KINDS, CODE, READ))) == {}
    near = code(talk("near", Batch(1, KINDS, CODE, READ)))
    assert near.keys() == {"w0 near", "w1 near"}, "its sums, which are collectives, are not behind another's load"
    assert code(talk("w1", Attached(1, True, "far"))) == {"w1 far": [1]}, "the load alone"
    assert code(talk("far", Batch(2, (), [(FREE, 1)]))) == {}, "in the order of its stream"
    assert code(talk("w0", Attached(0, True, "far"))).keys() == {"w0 far", "w1 far"}


def test_a_load_goes_at_once_to_the_workers_that_its_client_has_connected_to(talk: Conversation) -> None:
    sharded(talk)
    talk("w0", Attached(0, True, "far"))
    assert code(talk("far", Batch(1, KINDS, CODE))) == {"w0 far": [1]}
    assert code(talk("w1", Attached(1, True, "far"))).keys() == {"w0 far", "w1 far"}


def test_a_worker_that_is_lost_is_waited_for_no_longer(talk: Conversation) -> None:
    sharded(talk)
    talk("far", Batch(1, KINDS, CODE, READ))
    assert any(mail.peer == "far" and getattr(mail.message, "ticket", 0) == 5 for mail in talk.gone("w1"))
    assert talk("w0", Attached(0, True, "far")) == [] and talk.tables.clients["far"].loading is None


def test_bytes_that_come_are_not_the_connection_that_a_load_waits_for(talk: Conversation) -> None:
    sharded(talk)
    talk("far", Batch(1, KINDS, CODE))
    assert talk("w0", Arrived("far", 1)) == [] and talk.tables.clients["far"].loading == 1


def test_a_name_that_is_no_client_s_is_forgotten_by_the_worker_that_it_connected_to(talk: Conversation) -> None:
    talk.worker()
    assert talk("w0", Attached(0, True, "nobody")) == [Mail("w0", Drop("nobody"))]


def test_a_client_is_told_once_of_a_worker_that_has_its_work_and_does_not_hear_from_it(talk: Conversation) -> None:
    sharded(talk)
    talk("far", Batch(1, KINDS, CODE))
    talk("near", Batch(1, KINDS, CODE))
    tick = talk.dispatcher.tick
    assert tick(10.0) == [] == tick(10.0 + patience.HEARD)
    told = tick(11.0 + patience.HEARD)
    assert [mail.peer for mail in told] == ["far", "far"] and tick(99.0) == []
    assert {m.message.text.split(":")[0].split(" has not")[0] for m in told if isinstance(m.message, Note)} == {
        "worker w0 (ipc", "worker w1 (ipc"
    }  # fmt: skip


def test_a_worker_does_not_leave_with_a_piece_whose_other_pieces_are_on_their_way(talk: Conversation) -> None:
    """To move it, all workers take part that have a piece."""
    sharded(talk)
    [asked] = [m for m in talk("near", Batch(1, KINDS, [(1, 1, -1, 0, 0)])) if isinstance(m.message, Upload)]
    assert asked.message.workers == (0, 1)
    talk("w0", Arrived("near", 1))
    assert code(talk("w0", Drain())) == {}
    assert "w1 near" in code(talk("w1", Arrived("near", 1)))
