"""Reads that follow one another are sent together, and give the same values as one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt.client.session import Session
from gt.errors import RemoteError
from gt.testing import Cluster, cluster
from gt.transport.messages import Batch, Mail, Peers


@pytest.fixture
def made() -> Iterator[tuple[Cluster, Session]]:
    with cluster(1, engine="numpy") as c:
        gt.ones(1).item()
        yield c, c.sessions[0]


def sent(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """The batches with reads that are sent from now on."""
    found: list[Batch] = []
    send = session.link.send

    def noted(message: object) -> None:
        if isinstance(message, Batch) and message.gets:
            found.append(message)
        send(message)

    monkeypatch.setattr(session.link, "send", noted)
    return found


def test_the_second_of_two_reads_has_its_answer_when_it_comes(
    made: tuple[Cluster, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, batches = made[1], sent(made[1], monkeypatch)
    for i in range(10):
        a, b, c = gt.full((2,), float(i)), gt.full((3,), i + 0.5), gt.full((), -float(i))
        before = len(batches)
        assert a.tolist() == [i] * 2 and b.tolist() == [i + 0.5] * 3 and c.item() == -i
        assert len(batches) - before == (3 if i < 3 else 1)
    assert session.ahead.used == 14 and not session.replies and not session.replies.ahead


def test_an_answer_of_another_dtype_than_the_one_asked_for_ahead_is_dropped(made: tuple[Cluster, Session]) -> None:
    session = made[1]
    for i in range(40):
        dtype = gt.float64 if i % 10 == 9 else gt.float32
        a, b = gt.full((2,), float(i)), gt.full((3,), i + 0.5, dtype=dtype)
        assert a.tolist() == [i] * 2 and b.tolist() == [i + 0.5] * 3
    assert session.ahead.used > 10 and not session.replies and not session.replies.ahead


def test_a_value_that_is_read_three_times_is_asked_for_ahead_once(made: tuple[Cluster, Session]) -> None:
    session = made[1]
    for i in range(20):
        a = gt.full((2,), float(i))
        assert a.tolist() == a.tolist() == a.tolist() == [i] * 2
    assert session.ahead.used > 10 and not session.replies and not session.replies.ahead and not session.ahead.asked


def test_a_read_that_does_not_follow_is_no_longer_asked_for(
    made: tuple[Cluster, Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = made[1]
    for i in range(6):
        a, b = gt.full((2,), float(i)), gt.full((3,), float(-i))
        assert (a.tolist(), b.tolist()) == ([i] * 2, [-i] * 3)
    batches = sent(session, monkeypatch)
    for i in range(6):
        a, b = gt.full((2,), float(i)), gt.full((3,), float(-i))
        assert a.tolist() == [i] * 2
        assert (b + 1).tolist() == [1 - i] * 3
    assert [len(batch.gets) for batch in batches] == [2, *[1] * 11] and not session.replies.ahead


def test_a_tensor_that_is_gone_is_asked_for_ahead_and_nobody_minds(made: tuple[Cluster, Session]) -> None:
    for i in range(12):
        a, b = gt.full((2,), float(i)), gt.full((3,), float(-i))
        if i % 5 == 4:
            del b
            assert a.tolist() == [i] * 2
        else:
            assert (a.tolist(), b.tolist()) == ([i] * 2, [-i] * 3)


def test_a_failure_that_was_asked_for_ahead_is_its_own_readers_alone(made: tuple[Cluster, Session]) -> None:
    for i in range(6):
        a, b = gt.full((2,), float(i)), gt.full((3,), 3 + i)[gt.tensor([0 if i < 5 else 7])]
        assert a.tolist() == [i] * 2
        if i < 5:
            assert b.tolist() == [3 + i]
        else:
            with pytest.raises((RemoteError, IndexError)):
                b.tolist()
    assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]


def test_after_the_loss_of_a_worker_nothing_that_was_asked_for_ahead_is_waited_for(made: tuple[Cluster, Session]) -> None:
    session = made[1]
    for i in range(5):
        a, b = gt.full((2,), float(i)), gt.full((3,), float(-i))
        assert (a.tolist(), b.tolist()) == ([i] * 2, [-i] * 3)
    a, b = gt.full((2,), 1.0), gt.full((3,), 2.0)
    assert a.tolist() == [1.0] * 2 and session.ahead.asked
    session.ahead.asked[b.handle.id][0].done = False  # its answer was lost with a worker
    session.handle(Mail("dispatcher", Peers(session.workers, "another worker was lost")))
    assert b.tolist() == [2.0] * 3 and not session.ahead.asked


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_reads_and_ops_gives_numpys_numbers(made: tuple[Cluster, Session], seed: int) -> None:
    draw = random.Random(seed)
    pairs = [(gt.tensor([float(i)] * (1 + i % 2)), np.full(1 + i % 2, float(i), np.float32)) for i in range(4)]
    for step in range(150):
        for at in draw.choice([(0,), (0, 1), (0, 1), (0, 1), (0, 1, 2), (0, 1, 2), (1, 0), ()]):
            np.testing.assert_array_equal(pairs[at][0].numpy(), pairs[at][1])
        if draw.random() < 0.9:
            for at in range(3):
                x, want = pairs[at]
                pairs[at] = (x * 0.5 + step, want * np.float32(0.5) + np.float32(step))
    assert made[1].ahead.used > 5
