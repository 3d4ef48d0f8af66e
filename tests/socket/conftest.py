"""Tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Processes

import gt


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as made:
        yield made


@pytest.fixture
def disconnected() -> Iterator[None]:
    """For tests that connect in this process: they begin and end without a session."""
    gt.disconnect()
    yield
    gt.disconnect()
