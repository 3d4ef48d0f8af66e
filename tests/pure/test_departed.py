"""Workers and clients that come and go: the dispatcher keeps no state of departed workers and clients."""

from __future__ import annotations

import gc
import tracemalloc

from conversation import Conversation

from gt.dispatcher.tables import PIDS
from gt.spec import float32
from gt.transport.events import EVERY, Batches, Seen, Subscribe, Watched
from gt.transport.messages import VERSION, Answer, Ask, Batch, Begun, Configure, Done, Failed, Join, KindDef, Mail, Run

F = float32.code
FULL = KindDef(1, "full", ((-3,),), ((2, 2), F), "rows")
ROWS = Configure({"rows": {"mesh": None, "axes": [0], "workers": None}})
FIRST = PIDS + 10
ROUNDS = 1000


def joins(talk: Conversation, number: int) -> str:
    name = f"worker-{number}"
    at = f"tcp://host-{number}:1"
    talk(name, Join(VERSION, "", name, "numpy", "cpu", f"host-{number}", 1000 + number, f"ipc://{name}", at))
    talk.attached()
    return name


class Unchecked(Conversation):
    """Without checks after each message, which cost more than the message."""

    def told(self, mails: list[Mail]) -> list[Mail]:
        return mails


def visit(talk: Conversation, number: int) -> None:
    """A worker joins, two clients compute on it, and it leaves with one of them."""
    worker = joins(talk, number)
    visitor = f"visitor-{number}"
    talk.client(visitor)
    talk(visitor, ROWS)
    for client in ("stays", visitor):
        talk(client, Batch(number, (FULL,), [(1, 10 * number, 1.0)], ((number, 10 * number, (F, 2, 2)),), True))
    [leaving] = [mail.message for mail in talk.gone(visitor) if mail.peer == "w0"]
    for peer in ("w0", worker):
        talk(peer, Begun(leaving.number, ()))
    talk.gone(worker)
    talk("w0", Done("stays", number))
    talk("stays", Batch(number, (), [(0, 10 * number)]))


def size() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_nothing_is_kept_of_workers_and_clients_that_left() -> None:
    talk = Unchecked()
    talk.worker()
    talk.client("stays")
    talk("stays", ROWS)
    tracemalloc.start()
    try:
        for number in range(1, FIRST):  # until bounded caches are full
            visit(talk, number)
        before = size()
        for number in range(FIRST, FIRST + ROUNDS):
            visit(talk, number)
        grown = size() - before
    finally:
        tracemalloc.stop()
    tables = talk.tables
    tables.check()
    assert grown < 32 * ROUNDS, f"{grown / ROUNDS:.0f} bytes for each worker that left"
    assert list(tables.workers) == [0] and tables.hosts.names == {tables.hosts.of[0]}
    assert len(tables.pids) == PIDS and tables.joined == FIRST + ROUNDS and not tables.leaving


def test_an_index_is_never_given_again(talk: Conversation) -> None:
    talk.worker()
    for number in range(1, 4):
        assert talk.tables.by_peer[joins(talk, number)].index == number
        talk.gone(f"worker-{number}")
    assert talk.tables.by_peer[joins(talk, 4)].index == 4


def test_a_process_that_joined_is_known_after_its_end(talk: Conversation) -> None:
    joins(talk, 1)
    talk.gone("worker-1")
    assert talk.tables.has_joined(1001) and not talk.tables.has_joined(1002)


def test_statistics_leave_out_a_worker_that_answered_and_left(talk: Conversation) -> None:
    talk.worker()
    joins(talk, 1)
    talk.client("c")
    ticket = talk("c", Ask(3, "stats"))[0].message.ticket
    assert talk("worker-1", Answer(ticket, {"ran": 5})) == []
    talk.gone("worker-1")
    [mail] = talk("w0", Answer(ticket, {"ran": 7}))
    assert mail.message.value["workers"] == {"w0": {"index": 0, "ran": 7}}


def test_observers_are_told_of_batches_sent_to_a_worker_that_left(talk: Conversation) -> None:
    talk.worker()
    joins(talk, 1)
    talk.client("c")
    talk("c", ROWS)
    talk("c", Subscribe(VERSION, EVERY))
    talk("c", Seen(1))
    runs = talk("c", Batch(1, (FULL,), [(1, 10, 1.0)]))
    assert {mail.peer for mail in runs if isinstance(mail.message, Run)} == {"w0", "worker-1"}
    talk.gone("worker-1")
    events = [e for mail in talk.dispatcher.observers.flush() if isinstance(mail.message, Watched) for e in mail.message.events]
    [batches] = [e for e in events if isinstance(e, Batches)]
    assert batches.names == {0: "w0", 1: "worker-1"}


def test_a_tensor_of_a_worker_that_left_is_lost_and_others_are_freed(talk: Conversation) -> None:
    talk.worker()
    joins(talk, 1)
    talk.client("c")
    talk("c", ROWS)
    talk("c", Batch(1, (FULL,), [(1, 10, 1.0)]))
    freed = [mail for mail in talk.gone("worker-1") if isinstance(mail.message, Run)]
    assert [(mail.peer, mail.message.code) for mail in freed] == [("w0", [(0, 10)])]
    [mail] = talk("c", Batch(2, (), [], ((5, 10, (F, 2, 2)),)))
    assert isinstance(mail.message, Failed) and "worker worker-1 (index 1) was lost" in str(mail.message)
