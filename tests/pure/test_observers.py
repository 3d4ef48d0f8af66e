"""An observer sees the events that its key permits, is never waited for, and sets the detail of recording."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from conversation import Conversation

from gt.dispatcher.batch_notes import FEW
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.observers import ALL_BYTES, BYTES, EACH
from gt.dispatcher.users import User, Users
from gt.transport import events as e
from gt.transport.messages import VERSION, Ask, Batch, Bye, Hello, KindDef, Mail
from gt.watch.events import Reader
from gt.worker.programs.ticks import Ticks
from gt.worker.recorder import Recorder

FULL = KindDef(1, "full", ((-3,),), ((2, 2), 8))


@pytest.fixture
def watched() -> Conversation:
    """A worker, two clients and, as yet, nobody who watches."""
    talk = Conversation()
    talk.dispatcher.observers.prompt = True
    talk.worker("w0")
    talk("c", Hello(VERSION, "", "here", 1))
    talk("d", Hello(VERSION, "", "here", 2))
    return talk


def admin(talk: Conversation, peer: str = "top", level: int = e.SAMPLED) -> list[Mail]:
    """Whoever connects to a server without keys: the kernel lets in none but its own user."""
    return talk(peer, e.Subscribe(VERSION, level))


def events(mails: list[Mail], peer: str) -> list[e.Event]:
    return [
        event for mail in mails if mail.peer == peer and isinstance(mail.message, e.Watched) for event in mail.message.events
    ]


def spans(client: str, seconds: float = 0.5) -> e.WorkerReport:
    columns = (array("q", [1]), array("q", [5]), array("d", [2.0]), array("f", [seconds]))
    return e.WorkerReport((e.Spans(client, *(c.tobytes() for c in columns), meanings=(e.Meaning(1, "full", "create"),)),))


def test_nobody_listens_unless_someone_watches(watched: Conversation) -> None:
    assert not watched.dispatcher.observers.on
    assert all(not isinstance(m.message, e.Listen) for m in watched("c", Batch(1, (FULL,), [(1, 5, 1.0)])))
    told = admin(watched)
    assert {m.peer: m.message for m in told if isinstance(m.message, e.Listen)} == dict.fromkeys(
        ("w0", "c", "d"), e.Listen(e.SAMPLED)
    )
    gone = watched.gone("top")
    assert {m.peer: m.message for m in gone} == dict.fromkeys(("w0", "c", "d"), e.Listen(e.OFF))
    assert not watched.dispatcher.observers.on


def test_who_comes_first_hears_who_is_there_and_then_who_comes_and_goes(watched: Conversation) -> None:
    there = events(admin(watched), "top")
    assert [(x.name, x.index) for x in there if isinstance(x, e.Joined)] == [("w0", 0), ("here:1", -1), ("here:2", -1)]
    came = watched.worker("w1")
    assert [x.name for x in events(came, "top")] == ["w1"] and Mail("w1", e.Listen(e.SAMPLED)) in came
    watched.gone("w1")
    lost = events(watched("top", e.Seen(9)), "top")
    assert [(x.name, x.why) for x in lost if isinstance(x, e.Departed)] == [("w1", "its connection ended")]


def test_events_wait_for_the_next_flush_but_a_client_that_asks_has_them_before_its_answer(watched: Conversation) -> None:
    watched("d", e.Subscribe(VERSION, e.EVERY))
    observers = watched.dispatcher.observers
    observers.prompt = False
    assert events(watched("w0", spans("d")), "d") == [] and not observers.crowded
    assert watched("d", e.Seen(1)) == []  # else a message would follow each acknowledgement
    first = watched("d", Ask(7, "placement", 1))[0]
    assert isinstance(first.message, e.Watched) and len(first.message.events) == 1 and not observers.flush()


def test_a_worker_knows_the_highest_detail_that_anybody_wants() -> None:
    recorder = Recorder(float, lambda: None, Ticks())
    for listen, highest in (
        (e.Listen(e.SAMPLED), e.SAMPLED),
        (e.Listen(e.SAMPLED, (("c", e.EVERY),)), e.EVERY),
        (e.Listen(e.EVERY, (("c", e.OFF),)), e.EVERY),
    ):
        recorder.listen(listen)
        assert recorder.highest() == highest


def test_an_observer_with_many_pending_events_is_sent_them_at_once(watched: Conversation) -> None:
    admin(watched, level=e.EVERY)
    observers = watched.dispatcher.observers
    observers.prompt = False
    for i in range(1200):
        assert not observers.crowded
        watched("c", Batch(i + 1, (FULL,) if not i else (), [(1, 5 + i, 1.0)]))
        if observers.crowded:
            break
    assert i < 1100 and len(list(Reader().read(events(observers.flush(), "top")))) > 1000


def test_an_administrator_sees_all_and_a_client_its_own(watched: Conversation) -> None:
    admin(watched)
    watched("d", e.Subscribe(VERSION, e.EVERY))
    mine, other = watched("w0", spans("d")), watched("w0", spans("c"))
    assert [x.client for x in events(mine, "d")] == ["here:2"] == [x.client for x in events(mine, "top")]
    assert events(other, "d") == [] and [x.client for x in events(other, "top")] == ["here:1"]


def test_someone_without_rights_sees_only_the_client_whose_secret_name_it_has(watched: Conversation) -> None:
    for peer, client in (("stranger", ""), ("friend", "c")):
        watched.told(watched.dispatcher.handle(Mail(peer, e.Subscribe(VERSION, e.EVERY, client), (), "user")))
    mails = watched("w0", spans("c"))
    assert events(mails, "stranger") == [] and len(events(mails, "friend")) == 1
    assert all(x.client == "here:1" for x in events(mails, "friend")), "names are secrets, labels are not"


def test_programs_of_a_client_that_left_are_told_to_nobody_else(watched: Conversation) -> None:
    admin(watched)
    watched.told(watched.dispatcher.handle(Mail("stranger", e.Subscribe(VERSION, e.EVERY), (), "user")))
    watched.gone("c")
    watched("top", e.Seen(9))
    watched("stranger", e.Seen(9))
    mails = watched(
        "w0", e.WorkerReport((e.Compiled("c", 1.0, 0.5, "a trace of 7 ops"), e.Compiled("x", 1.0, 0.5, "of nobody")))
    )
    assert [x.text for x in events(mails, "top")] == ["a trace of 7 ops"] and events(mails, "stranger") == []


def test_workers_look_closely_only_for_whom_that_was_asked(watched: Conversation) -> None:
    admin(watched)
    told = {m.peer: m.message for m in watched("d", e.Subscribe(VERSION, e.EXACT)) if isinstance(m.message, e.Listen)}
    assert told == {"w0": e.Listen(e.SAMPLED, (("d", e.EXACT),)), "d": e.Listen(e.EXACT)}
    told = {m.peer: m.message for m in watched("d", e.Subscribe(VERSION, e.OFF)) if isinstance(m.message, e.Listen)}
    assert told == {"w0": e.Listen(e.SAMPLED), "d": e.Listen(e.SAMPLED)}


def test_a_slow_observer_loses_events_which_are_counted(watched: Conversation) -> None:
    admin(watched)
    sent = [m for i in range(3 * e.WINDOW) for m in watched("w0", spans("c")) if m.peer == "top"]
    assert len(sent) == e.WINDOW - 1, "and the first, when it came"
    observer = watched.dispatcher.observers.there["top"]
    observer.pending *= 100
    watched("w0", spans("c"))
    assert observer.dropped == 1 and watched.dispatcher.observers.there["top"].flight.sent == e.WINDOW
    [mail] = watched("top", e.Seen(e.WINDOW))
    assert isinstance(mail.message, e.Watched) and mail.message.dropped == 1 and len(mail.message.events) > 5000


def test_a_batch_is_told_with_its_contents(watched: Conversation) -> None:
    admin(watched, level=e.EVERY)
    seen = events(watched("c", Batch(1, (FULL,), [(1, 5, 1.0), (1, 6, 1.0), (0, 5)], ((9, 6, (8, 2, 2)),))), "top")
    received, sent = Reader().read(seen)
    assert isinstance(received, e.Received) and isinstance(sent, e.Sent)
    assert (received.instructions, received.batches, received.serial) == (2, 1, 1)
    assert (sent.worker, sent.serial, sent.instructions) == ("w0", 1, 3)
    admin(watched, level=e.SAMPLED)  # in the place of the other: no arrows are drawn
    again = events(watched("c", Batch(2, (), [(1, 7, 1.0)], ())), "top")
    assert [type(event) for event in again if not isinstance(event, e.Joined)] == [e.Received]


@pytest.mark.parametrize("level", [e.SAMPLED, e.EVERY])
def test_short_and_long_batches_are_counted_without_their_frees(watched: Conversation, level: int) -> None:
    admin(watched, level=level)
    observers = watched.dispatcher.observers
    observers.prompt = False
    for serial, n in enumerate((2, 3 * FEW, 5), 1):
        code = [(1, 1000 * serial + i, 1.0) for i in range(n)]
        watched("c", Batch(serial, (FULL,) if serial == 1 else (), [*code, (0, 1000 * serial)]))
    for client in ("d", "c"):
        watched(client, Batch(4, (FULL,), [(1, 9000, 1.0)]))
    found = [event for event in Reader().read(events(observers.flush(), "top")) if isinstance(event, e.Received)]
    told = {label: [event for event in found if event.client == label] for label in ("here:1", "here:2")}
    counts = {
        label: (sum(r.batches for r in all), sum(r.instructions for r in all), all[-1].serial) for label, all in told.items()
    }
    assert counts == {"here:1": (4, 2 + 3 * FEW + 5 + 1, 4), "here:2": (1, 1, 4)}
    assert len(told["here:1"]) == (1 if level == e.SAMPLED else 4)
    assert not any(isinstance(event, (e.Received, e.Sent, e.Batches)) for event in events(observers.flush(), "top"))


BAD: list[tuple[str, Any]] = [
    ("w0", e.WorkerReport((e.Spans("c", b"1", b"", b"", b""),))),
    ("w0", e.WorkerReport((e.Waited("c", 0.0, 0.0, "x", 1),))),
    ("c", e.WorkerReport((e.State(0.0, 0.0, 0.0, 0, 0, 0, 0),))),
    ("c", spans("d")),
    ("c", e.WorkerReport((e.Waited("c", 0.0, 0.0, "\x1b[2J", 1),))),
    ("c", e.WorkerReport((e.Lines("c", bytes(8), bytes(4), ()),))),
    ("c", e.WorkerReport((e.Waited("c", 0.0, 0.0, "x", 1),) * (e.REPORTED + 1))),
    ("c", e.WorkerReport((e.Waited("c", 0.0, float("nan"), "x", 1),))),
    ("c", e.WorkerReport((e.Loaded("c", float("inf"), 0.0, "x", 1, ""),))),
    ("c", e.WorkerReport((e.Loaded("c", 0.0, 0.0, "x", 1, "\x1b[2J"),))),
    ("c", e.WorkerReport((e.Loaded("c", 0.0, 0.0, "x", -1, ""),))),
    ("c", e.WorkerReport((e.Traced("c", 0.0, 0, 1, 2, (("why", -1, "x"),)),))),
    ("w0", spans("c", float("nan"))),
    ("c", e.Subscribe(VERSION, 9)),
    ("w0", e.Subscribe(VERSION, 1)),
    ("c", e.Seen(4)),
    ("c", e.Listen(1)),
    ("c", e.Watched(1, ())),
]


@pytest.mark.parametrize(("peer", "message"), BAD, ids=[f"{p} {type(m).__name__} {i}" for i, (p, m) in enumerate(BAD)])
def test_reports_that_no_peer_of_ours_sends_are_dropped_and_counted(watched: Conversation, peer: str, message: Any) -> None:
    admin(watched)
    before = watched.tables.dropped
    assert events(watched(peer, message), "top") == []
    assert watched.tables.dropped == before + 1


def test_a_serial_that_fits_no_column_is_refused(watched: Conversation) -> None:
    """Events are packed as the shell sends them, where an error would end the dispatcher."""
    admin(watched, level=e.EVERY)
    watched.dispatcher.observers.prompt = False
    before = watched.tables.dropped
    watched("c", Batch(1 << 63, (FULL,), [(1, 5, 1.0)]))
    assert watched.tables.dropped == before + 1 and events(watched.dispatcher.observers.flush(), "top") == []


def test_another_version_is_told_so(watched: Conversation) -> None:
    [mail] = watched("old", e.Subscribe(VERSION + 1, e.EVERY))
    assert "version" in mail.message.why


def subscribed(talk: Conversation, peer: str, role: str, level: int = e.EVERY) -> list[Mail]:
    return talk.told(talk.dispatcher.handle(Mail(peer, e.Subscribe(VERSION, level), (), role)))


@pytest.fixture
def pool() -> Conversation:
    """A worker, a client of each of two users, and observers of both and of an administrator."""
    talk = Conversation()
    named = {name: User(name, administrator=name == "root") for name in ("alice", "bob", "root")}
    talk.dispatcher = Dispatcher(users=Users(named))
    talk.tables, talk.dispatcher.observers.prompt = talk.dispatcher.tables, True
    talk.worker("w0")
    for name in ("alice", "bob"):
        talk.told(talk.dispatcher.handle(Mail(f"{name}-1", Hello(VERSION, "", name, 1), (), f"user {name}")))
    for name in named:
        subscribed(talk, f"{name}-top", f"user {name}")
    return talk


def test_a_worker_s_load_is_for_all_and_its_instructions_for_their_user(pool: Conversation) -> None:
    state = e.State(1.0, 2.0, 3.0, 4, 5, 6, 7, current="matmul", since=2.0, stack="in her file", client="alice-1")
    mails = pool("w0", e.WorkerReport((state,)))
    for observer, current, stack, client in (
        ("alice-top", "matmul", "in her file", "alice:1"), ("root-top", "matmul", "in her file", "alice:1"),
        ("bob-top", "", "", ""),
    ):  # fmt: skip
        [seen] = events(mails, observer)
        assert isinstance(seen, e.State) and (seen.queue, seen.nbytes, seen.worker) == (4, 5, "w0")
        assert (seen.current, seen.stack, seen.client) == (current, stack, client), observer


def test_programs_of_a_client_that_left_are_seen_by_its_user_alone(pool: Conversation) -> None:
    pool.gone("alice-1")
    mails = pool("w0", e.WorkerReport((e.Compiled("alice-1", 1.0, 2.0, "her program"),)))
    assert [x.client for x in events(mails, "alice-top") if isinstance(x, e.Compiled)] == ["alice:1"]
    assert not [x for x in events(mails, "bob-top") if isinstance(x, e.Compiled)]
    assert not events(pool("w0", e.WorkerReport((e.Compiled("never heard of", 1.0, 2.0, "x"),))), "bob-top")


def large(rows: int = 1 << 17) -> e.WorkerReport:
    """A megabyte and more of lines."""
    return e.WorkerReport((e.Lines("", bytes(8 * rows), bytes(2 * rows), ("x",)),))


def waits(talk: Conversation) -> int:
    """Bytes of events that are kept for observers, or were sent and not taken in."""
    observers = talk.dispatcher.observers
    return sum(o.bytes for o in observers.there.values()) + sum(f.bytes for f in observers.flights.values())


def test_events_that_wait_for_an_observer_are_bounded_in_bytes(pool: Conversation) -> None:
    for _ in range(100):
        pool("bob-1", large())
    there = pool.dispatcher.observers.there
    assert there["bob-top"].dropped > 60 and there["alice-top"].dropped == 0
    assert there["bob-top"].bytes + there["bob-top"].flight.bytes < 3 * BYTES
    assert there["root-top"].dropped == 0, "an administrator has room for more"
    again = pool("bob-top", e.Seen(there["bob-top"].flight.sent))
    assert len(events(again, "bob-top")) > 5 and there["bob-top"].bytes == 0


def test_who_ends_a_subscription_and_begins_another_has_no_more_room(pool: Conversation) -> None:
    sent = 0
    for _ in range(60):
        subscribed(pool, "bob-1", "", e.OFF)
        subscribed(pool, "bob-1", "")
        sent += sum(map(e.nbytes, events(pool("bob-1", large()), "bob-1")))
    assert BYTES <= sent < 2 * BYTES
    pool.gone("bob-1")
    assert "bob-1" not in pool.dispatcher.observers.flights


def test_observers_of_users_have_a_bound_together(pool: Conversation) -> None:
    shared = Conversation()
    shared.dispatcher.observers.prompt = True
    shared.worker("w0")
    for i in range(30):
        shared.told(shared.dispatcher.handle(Mail(f"c{i}", Hello(VERSION, "", "here", i), (), "user")))
        subscribed(shared, f"c{i}", "user")
        for _ in range(20):
            shared(f"c{i}", large())
    assert waits(shared) < ALL_BYTES + (8 << 20)


def test_observers_of_one_user_shut_out_nobody(pool: Conversation) -> None:
    refused = [subscribed(pool, f"bob-{i}", "user bob")[-1].message for i in range(2, 80)]
    assert sum(isinstance(m, Bye) for m in refused) == 78 - (EACH - 1)
    assert isinstance(subscribed(pool, "alice-2", "user alice")[-1].message, e.Watched)
    shared = Conversation()
    for i in range(80):
        subscribed(shared, f"o{i}", "user")
    assert len(shared.dispatcher.observers.there) < 64
    assert isinstance(subscribed(shared, "root", "worker")[-1].message, e.Watched), "whoever has the workers' key"


def test_a_client_s_clock_moves_no_picture(pool: Conversation) -> None:
    pool.dispatcher.observers.clock = lambda: 5000.0
    reports = [e.Waited("", at, 0.5, "x.py:3", 1) for at in (4990.0, 1e11, -1e11)]
    assert [x.at for x in events(pool("bob-1", e.WorkerReport(tuple(reports))), "bob-top")] == [4990.0, 5000.0, 5000.0]  # type: ignore[attr-defined]
