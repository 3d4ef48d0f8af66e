"""Who watches sees what it may, is never waited for, and has others look only as closely as it asks."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from conversation import Conversation

from gt.transport import events as e
from gt.transport.messages import VERSION, Batch, Hello, KindDef, Mail

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


def spans(client: str, seconds: float = 0.5) -> e.Report:
    columns = (array("q", [1]), array("q", [5]), array("d", [2.0]), array("f", [seconds]))
    return e.Report((e.Spans(client, *(c.tobytes() for c in columns), meanings=(e.Meaning(1, "full", "create"),)),))


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
    assert [(x.name, x.why) for x in lost if isinstance(x, e.Lost)] == [("w1", "its connection ended")]


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


def test_workers_look_closely_only_for_whom_that_was_asked(watched: Conversation) -> None:
    admin(watched)
    told = {m.peer: m.message for m in watched("d", e.Subscribe(VERSION, e.EXACT)) if isinstance(m.message, e.Listen)}
    assert told == {"w0": e.Listen(e.SAMPLED, (("d", e.EXACT),)), "d": e.Listen(e.EXACT)}
    told = {m.peer: m.message for m in watched("d", e.Subscribe(VERSION, e.OFF)) if isinstance(m.message, e.Listen)}
    assert told == {"w0": e.Listen(e.SAMPLED), "d": e.Listen(e.SAMPLED)}


def test_an_observer_that_does_not_take_in_what_it_is_sent_loses_events_which_are_counted(watched: Conversation) -> None:
    admin(watched)
    sent = [m for i in range(3 * e.WINDOW) for m in watched("w0", spans("c")) if m.peer == "top"]
    assert len(sent) == e.WINDOW - 1, "and the first, when it came"
    observer = watched.dispatcher.observers.there["top"]
    observer.pending *= 100
    watched("w0", spans("c"))
    assert observer.dropped == 1 and watched.dispatcher.observers.there["top"].sent == e.WINDOW
    [mail] = watched("top", e.Seen(e.WINDOW))
    assert isinstance(mail.message, e.Watched) and mail.message.dropped == 1 and len(mail.message.events) > 5000


def test_a_batch_is_told_with_what_it_holds(watched: Conversation) -> None:
    admin(watched)
    seen = events(watched("c", Batch(1, (FULL,), [(1, 5, 1.0), (1, 6, 1.0), (0, 5)], ((9, 6, (8, 2, 2)),))), "top")
    received, sent = seen
    assert isinstance(received, e.Received) and isinstance(sent, e.Sent)
    assert (received.instructions, received.frees, received.reads, received.calls) == (2, 1, 1, 0)
    assert (sent.worker, sent.serial, sent.instructions) == ("w0", 1, 3)


BAD: list[tuple[str, Any]] = [
    ("w0", e.Report((e.Spans("c", b"1", b"", b"", b""),))),
    ("w0", e.Report((e.Waited("c", 0.0, 0.0, "x", 1),))),
    ("c", e.Report((e.State(0.0, 0.0, 0.0, 0, 0, 0, 0),))),
    ("c", spans("d")),
    ("c", e.Report((e.Waited("c", 0.0, 0.0, "\x1b[2J", 1),))),
    ("c", e.Report((e.Lines("c", bytes(8), bytes(4), ()),))),
    ("c", e.Report((e.Waited("c", 0.0, 0.0, "x", 1),) * (e.REPORTED + 1))),
    ("c", e.Subscribe(VERSION, 9)),
    ("w0", e.Subscribe(VERSION, 1)),
    ("c", e.Seen(4)),
    ("c", e.Listen(1)),
    ("c", e.Watched(1, ())),
]


@pytest.mark.parametrize(("peer", "message"), BAD, ids=[f"{p} {type(m).__name__} {i}" for i, (p, m) in enumerate(BAD)])
def test_what_no_peer_of_ours_reports_is_dropped_and_counted(watched: Conversation, peer: str, message: Any) -> None:
    admin(watched)
    before = watched.tables.dropped
    assert events(watched(peer, message), "top") == []
    assert watched.tables.dropped == before + 1


def test_another_version_is_told_so(watched: Conversation) -> None:
    [mail] = watched("old", e.Subscribe(VERSION + 1, e.EVERY))
    assert "version" in mail.message.why
