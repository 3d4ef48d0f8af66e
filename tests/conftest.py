"""What all tests share: a deadline each, and a quiet environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

DEADLINE = 240  # seconds; a test that waits longer waits for something that will not come

# The same examples each time, so that a suite that passed passes; TEST_RANDOM=1 tries new ones.
settings.register_profile("gt", deadline=None, max_examples=50, derandomize=not os.environ.get("TEST_RANDOM"))
settings.load_profile("gt")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    def expired(*_: Any) -> None:
        raise TimeoutError(f"{item.name} took longer than {DEADLINE} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(DEADLINE)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True, scope="session")
def plain_environment() -> Iterator[None]:
    """No variable of the caller's changes what GT does here."""
    saved = {k: os.environ.pop(k) for k in list(os.environ) if k.startswith("GT_")}
    yield
    os.environ.update(saved)
