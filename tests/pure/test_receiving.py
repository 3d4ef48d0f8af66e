"""The thread that receives for a session: conversations with the state machine, and every order of two readers."""

from __future__ import annotations

from itertools import product

from gt.transport.receiving import PATIENCE, Background, Pause, Pauses, Receiving

RECEIVING, WATCHING, RESTING, CLOSED = Background


def leaves(r: Receiving, others: bool) -> bool:
    """A reader gives its turn back. Returns whether it wakes the background thread."""
    r.turn.release()
    return r.reader_left(others)


def at_work() -> Receiving:
    """A machine whose background thread receives."""
    made = Receiving()
    assert made.advance() is RECEIVING
    return made


def watching() -> Receiving:
    made = at_work()
    made.received(last=True)
    assert made.advance() is WATCHING
    return made


def resting() -> Receiving:
    made = watching()
    assert made.reader_comes([]) and made.advance() is WATCHING  # it came since the last look
    assert made.advance() is RESTING  # and is still there
    return made


def test_without_readers_the_background_thread_receives() -> None:
    r = at_work()
    assert r.advance() is RECEIVING and not r.reader_comes([])


def test_a_reader_that_comes_while_the_background_thread_receives_waits_for_its_reply() -> None:
    r = at_work()
    assert not r.reader_comes([])
    r.received(last=False)
    assert r.advance() is RECEIVING


def test_a_reader_that_asks_is_given_the_turn_when_the_background_thread_wakes() -> None:
    r = at_work()
    assert not r.reader_comes([]) and r.reader_asks() and r.turn.locked()
    assert r.advance() is WATCHING and r.reader_comes([])
    leaves(r, others=False)
    assert r.advance() is WATCHING and r.advance() is RESTING and not r.turn.locked()
    assert r.advance(late=True) is RECEIVING, "it takes the turn again when no reader comes"
    assert r.advance() is RECEIVING, "and keeps it: what was asked for was given"


def left_free() -> Receiving:
    """A machine whose background thread rests behind a reader that had to ask for the turn."""
    r = at_work()
    assert r.reader_asks() and r.advance() is WATCHING and r.reader_comes([]) and not leaves(r, others=False)
    assert r.advance() is WATCHING and r.advance() is RESTING and r.free
    return r


def test_a_reader_that_comes_again_soon_finds_the_turn_free_and_wakes_nobody() -> None:
    r = left_free()
    for _ in range(3):
        assert r.buffer_written() and r.batch_sent(), "the alarm is set for whoever writes and does not read"
        assert r.reader_comes([]) and not leaves(r, others=False)
        assert r.advance() is WATCHING and r.advance() is RESTING and r.free  # the alarm rang, for its frees


def test_a_turn_that_is_left_free_is_taken_after_a_while_and_then_not_left_again() -> None:
    r = left_free()
    assert r.advance() is RESTING, "the alarm rang"
    assert r.advance(late=True) is RECEIVING and not r.free
    r.received(last=True)
    assert r.advance() is WATCHING and r.advance() is RECEIVING


def test_a_turn_that_is_left_free_is_taken_where_a_message_is_to_be_sent_or_a_reader_waits() -> None:
    assert left_free().advance(awaited=True) is RECEIVING
    r = left_free()
    assert r.reader_comes([]) and not r.reader_comes([])
    assert leaves(r, others=True) and r.advance(awaited=True) is RECEIVING
    r = at_work()
    assert r.reader_asks() and r.advance() is WATCHING and r.advance(awaited=True) is RECEIVING, "who asked waits elsewhere"


def test_a_long_reader_of_a_free_turn_calls_the_thread_that_has_seen_it() -> None:
    r = left_free()
    assert r.reader_comes([]) and r.advance(late=True) is RESTING and not r.free
    assert leaves(r, others=False) and r.advance() is WATCHING


def test_a_turn_that_was_asked_for_and_not_taken_goes_back_to_the_background_thread() -> None:
    r = at_work()
    assert r.reader_asks() and r.advance() is WATCHING and r.advance(awaited=True) is RECEIVING


def test_only_a_thread_that_receives_is_asked_for_the_turn() -> None:
    assert not watching().reader_asks() and not resting().reader_asks()
    r = watching()
    assert not r.reader_asks() and r.advance() is RECEIVING and r.advance() is RECEIVING


def test_after_the_last_awaited_value_the_turn_is_left_to_readers() -> None:
    r = watching()
    assert r.reader_comes([]) and not r.reader_comes([])  # one at a time


def test_a_message_behind_the_last_value_keeps_the_turn() -> None:
    r = at_work()
    r.received(last=True)
    r.received(last=False)
    assert r.advance() is RECEIVING


def test_while_readers_come_and_go_the_background_thread_only_watches() -> None:
    r = watching()
    for _ in range(5):
        assert r.reader_comes([]) and not leaves(r, others=False)
        assert r.advance() is WATCHING


def test_when_no_reader_came_between_two_looks_the_background_thread_receives_again() -> None:
    r = watching()
    assert r.advance() is RECEIVING and not r.reader_comes([])


def test_with_one_long_reader_the_background_thread_rests_until_it_is_called() -> None:
    r = resting()
    assert r.advance() is RESTING  # the alarm rang
    assert leaves(r, others=False)  # it is to be called
    assert r.advance() is WATCHING


def test_a_resting_thread_receives_at_once_where_another_reader_waits() -> None:
    r = resting()
    assert not r.reader_comes([])
    assert leaves(r, others=True) and r.advance(awaited=True) is RECEIVING


def test_a_reader_that_leaves_while_another_waits_calls_the_watching_thread() -> None:
    r = watching()
    assert r.reader_comes([]) and not r.reader_comes([])
    assert leaves(r, others=True) and r.advance(called=True) is RECEIVING


def test_a_called_thread_watches_on_if_a_reader_was_faster() -> None:
    r = watching()
    assert r.reader_comes([]) and r.advance(called=True) is WATCHING and not r.reader_comes([])


def test_a_reader_that_leaves_before_the_thread_rests_is_not_waited_for() -> None:
    class Gone:
        """A turn whose holder leaves between the two looks at it."""

        def __init__(self) -> None:
            self.looks = iter((True, False))

        def locked(self) -> bool:
            return next(self.looks)

    r = watching()
    r.turn = Gone()  # type: ignore[assignment]
    assert r.advance() is WATCHING


def test_the_alarm_is_set_unless_the_thread_looks_by_itself_and_is_called_off_by_a_batch() -> None:
    r = at_work()
    assert not r.batch_sent()
    assert r.buffer_written() and r.batch_sent() and not r.batch_sent()
    assert not watching().buffer_written()
    r = resting()
    assert r.buffer_written() and r.batch_sent()


def test_closing_ends_the_thread_in_every_state_and_gives_its_turn_back() -> None:
    for made in (Receiving, at_work, watching):
        r = made()
        r.close()
        assert r.advance() is CLOSED and not r.turn.locked() and r.advance() is CLOSED


def test_closing_during_a_read_leaves_the_turn_to_the_reader() -> None:
    r = resting()
    r.close()
    assert r.advance() is CLOSED and r.turn.locked()
    leaves(r, others=False)
    assert not r.turn.locked()


def test_in_every_order_of_two_readers_somebody_receives_for_whoever_waits() -> None:
    """Each letter is a step: a reader comes or leaves, or the background thread takes one. A reader without the turn waits."""
    for order in product("abB", repeat=9):
        r, holder, waiting, called = Receiving(), "", set(), False
        for step in order:
            if step == "B":
                if r.state is RESTING and not called and not r.free:
                    continue  # it sleeps
                r.advance(called, awaited=bool(waiting), late=r.free and not called)
                called = False
            elif step == holder:
                holder = ""
                called |= leaves(r, others=bool(waiting))
            elif step not in waiting:
                if r.reader_comes([]):
                    holder = step
                else:
                    waiting.add(step)
                    r.reader_asks()
            assert r.turn.locked() == (bool(holder) or r.state is RECEIVING), order
            assert not (holder and r.state is RECEIVING), order
        if waiting and not holder:
            for _ in range(3):  # looks, of which a resting thread takes none unless it was called
                if r.state is not RESTING or called or r.free:
                    r.advance(called, awaited=True)
                    called = False
            assert r.state is RECEIVING, order


def test_a_pause_is_short_at_first_and_long_after_several_looks() -> None:
    pauses = Pauses()
    assert pauses.look(5) is Pause.NONE
    assert [pauses.look(5) for _ in range(PATIENCE)] == [Pause.SHORT] * (PATIENCE - 1) + [Pause.LONG]
    assert pauses.look(6) is Pause.NONE and pauses.look(6) is Pause.SHORT
