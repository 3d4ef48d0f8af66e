"""The streams of clients of one GPU: recorded kernels use the workspaces of their stream, so busy clients share none."""

from __future__ import annotations

from itertools import count

from gt.worker.engine.torch.client_streams import StreamPairs


def pairs() -> StreamPairs:
    numbers = count()
    return StreamPairs(lambda priority: (priority, next(numbers)))


def test_clients_have_no_stream_in_common_and_who_comes_later_takes_those_of_who_left() -> None:
    made = pairs()
    held = [made.take(0) for _ in range(StreamPairs.MAX_PAIRS)]
    assert len({stream for pair in held for stream in pair}) == 2 * StreamPairs.MAX_PAIRS < 32, "PyTorch has 32 of a priority"
    assert made.take(-5)[0][0] == -5
    made.give_back(held[3])
    assert made.take(0) == held[3]


def test_past_the_most_a_pair_is_shared_as_a_whole() -> None:
    made = pairs()
    held = [made.take(0) for _ in range(2 * StreamPairs.MAX_PAIRS)]
    assert sorted(held) == sorted(2 * held[: StreamPairs.MAX_PAIRS])
    made.give_back(held[0])
    assert made.take(0) == held[0], "the one that fewest have"
