"""Output on standard error never blocks a process, whether it is read or not."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gt.transport import debug_output
from gt.transport.debug_output import StandardError, show


@contextlib.contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end to read from of a pipe that is standard error."""
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    with open(writes, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(debug_output, "STANDARD_ERROR", StandardError())
        patch.setattr(debug_output, "PATIENCE", 1)
        yield reads
    os.close(reads)


def test_lines_that_nobody_reads_are_lost_and_their_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as reads:
        for i in range(100):
            show(f"{i:04} " + "x" * 5000)  # 500 KB; a pipe holds 64
        lost = debug_output.STANDARD_ERROR.lost
        assert lost > 50 and os.get_blocking(sys.stderr.fileno())  # others that write there may wait
        held = os.read(reads, 1 << 20)
        assert held.startswith(b"0000 xxx") and b"0099" not in held
        show("there again")
        assert os.read(reads, 1 << 20) == b"\ngt: %d writes to this pipe were lost, as no process read it\nthere again\n" % lost
        assert debug_output.STANDARD_ERROR.lost == 0


def test_a_line_reaches_whoever_reads_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as reads:
        show("y" * 20_000)
        assert os.read(reads, 1 << 20) == b"y" * 20_000 + b"\n"


def test_a_stream_that_is_no_file_is_written_to(capsys: Any) -> None:
    show("a line")
    assert capsys.readouterr().err == "a line\n"
