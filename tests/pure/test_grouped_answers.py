"""Small answers to one client that follow one another are one message; the client takes each for its own reader."""

from __future__ import annotations

from gt.client.replies import Replies
from gt.transport.messages import Done, Failed, Mail, SmallValues, Value
from gt.worker.answers import GROUP, TINY, grouped
from gt.worker.peer_names import DISPATCHER


def value(ticket: int, client: str = "c", nbytes: int = 4) -> Mail:
    return Mail(client, Value(ticket, (8,), (), (), 1, None, bytes(nbytes)))


def test_values_for_one_client_are_one_message_in_their_order() -> None:
    [mail] = grouped([value(n) for n in range(GROUP)], {"c"})
    assert mail.peer == "c" and [v.ticket for v in mail.message.values] == list(range(GROUP))


def test_other_messages_clients_and_large_values_stay_by_themselves_in_their_order() -> None:
    framed = Mail("c", Value(5, (8, 9), (0,), (9,), 1), (b"x",))
    placed = Mail("c", Value(6, (8, 9), (0,), (9,), 1, (1, 0, 36)))
    mails = [
        value(0), Mail("c", Failed(1, "GTError", "why", 1)), value(2), value(3), value(4, "other"), framed, placed,
        value(7, nbytes=TINY + 1), value(8), value(9), Mail(DISPATCHER, Done("c", 1)), value(10),
    ]  # fmt: skip
    found = grouped(mails, {"c", "other"})
    assert [type(mail.message) for mail in found] == [
        Value, Failed, SmallValues, Value, Value, Value, Value, SmallValues, Done, Value
    ]  # fmt: skip
    apart = [m for mail in found for m in (mail.message.values if isinstance(mail.message, SmallValues) else [mail.message])]
    assert apart == [mail.message for mail in mails]


def test_a_message_has_at_most_so_many_values() -> None:
    assert [len(mail.message.values) for mail in grouped([value(n) for n in range(2 * GROUP + 3)], {"c"})] == [GROUP, GROUP, 3]


def test_a_client_without_a_lane_gets_each_by_itself() -> None:
    mails = [value(n) for n in range(4)]
    assert grouped(mails, {"other"}) == mails


def test_each_value_settles_its_own_reply_and_others_are_ignored() -> None:
    replies = Replies()
    readers = [replies.new() for _ in range(3)]
    one, two = (Value(r.ticket, (8,), (), (), 1, None, bytes([n] * 4)) for n, r in enumerate(readers[:2]))
    assert replies.take_small(SmallValues((one, Value(999, (8,), (), (), 1, None, b""), two)))
    assert [r.value for r in readers] == [b"\0\0\0\0", b"\1\1\1\1", None] and not readers[2].done
    assert not replies.take_small(Value(readers[2].ticket, (8, 9), (0,), (9,), 1, (1, 0, 36)))
