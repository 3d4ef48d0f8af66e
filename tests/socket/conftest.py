"""Tests with real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Commands
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


@pytest.fixture
def gt_command(
    processes: Processes, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, disconnected: None
) -> Commands:
    monkeypatch.setenv("GT_POOLS", str(tmp_path / "pools"))
    monkeypatch.setenv("TEST_MARK", processes.mark)
    monkeypatch.setenv("GT_COLLECTIVES", "mail")  # PyTorch takes longer to load than all else here
    return Commands(processes, tmp_path / "pools", capsys)
