"""A bounded sample of `make fuzz`: hostile messages beside a client that computes."""

from __future__ import annotations

from typing import Any

import pytest

from gt.dispatcher.stream import Stream
from gt.dispatcher.tables import Entry
from gt.testing.fuzz import Fuzz, noise
from gt.testing.hostile import record
from gt.transport import messages as m

SESSIONS: list[list[m.Message]] = []


@pytest.fixture
def sessions() -> list[list[m.Message]]:
    if not SESSIONS:
        SESSIONS.extend(record(2))
    return SESSIONS


@pytest.mark.parametrize(("workers", "seed", "count"), [(2, 1, 10_000), (2, 5, 10_000), (1, 2, 15_000), (3, 3, 5_000)])
def test_hostile_messages_harm_nobody_and_every_read_is_answered(
    workers: int, seed: int, count: int, sessions: list[list[m.Message]]
) -> None:
    fuzz = Fuzz(seed, workers, sessions=sessions)
    assert fuzz.run(count) == count
    assert sum(w.stats()["instructions"] for w in fuzz.pool.workers) > count  # most of it came as far as a kernel
    assert fuzz.pool.dispatcher.tables.dropped > count // 10


def test_messages_with_bytes_changed_are_no_messages_or_are_handled(sessions: list[list[m.Message]]) -> None:
    assert noise(4, 60_000, sessions) > 10_000


def test_the_fuzzer_notices_a_read_without_an_answer(sessions: list[list[m.Message]], monkeypatch: pytest.MonkeyPatch) -> None:
    """It can fail: where reads of what could not be made are forgotten, it does."""
    get = Stream._get

    def forgetful(self: Any, client: Any, ticket: int, id: int, *rest: Any) -> None:
        if isinstance(client.entries.get(id), Entry):
            get(self, client, ticket, id, *rest)

    monkeypatch.setattr(Stream, "_get", forgetful)
    with pytest.raises(AssertionError, match="were not answered"):
        Fuzz(1, 2, sessions=sessions).run(2_000)
