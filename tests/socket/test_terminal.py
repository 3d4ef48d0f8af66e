"""`gt top` in a real terminal of 80 columns, with a cluster that works."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from contextlib import suppress

import pytest
from processes import Processes

pytest.importorskip("textual")
pytestmark = pytest.mark.slow
COLUMNS, ROWS = 80, 24
MATMULS = """
import sys, gt
gt.connect(sys.argv[1])
x = gt.ones(512, 512) / 512
print("works", flush=True)
while True:
    for _ in range(20):  # long against the time in which a busy machine lets the script go on after a read
        x = x @ x
    x.sum().item()
"""
STUCK = """
import sys, gt
gt.connect(sys.argv[1])
x = gt.ones(4000, 4000, dtype=gt.int64)  # (products of integers are not BLAS': one takes a minute)
print("works", flush=True)
(x @ x).numpy()
"""
MOVES = re.compile(rb"\x1b\[(\d+);(\d+)H|\x1b\[(\d+)C|\r|\n")  # of the cursor: to a place, to the right, to a line's beginning
CODES = re.compile(rb"\x1b(\[[0-9;?<=>$ ]*[A-Za-z~]|[()][A-Z0-9]|[=>]|\][^\x07]*\x07|P[^\x1b]*\x1b\\)")


def letter_is_whole(tail: bytes) -> bool:
    """Whether this is not the beginning of a letter in UTF-8."""
    return not tail or tail[0] < 0xC0 or len(tail) >= (2 if tail[0] < 0xE0 else 3 if tail[0] < 0xF0 else 4)


class Terminal:
    """A program with a terminal of its own, whose screen is kept as lines."""

    def __init__(self, *command: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
            os.execv(command[0], command)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.screen = [[" "] * COLUMNS for _ in range(ROWS)]
        self.row = self.column = 0
        self.too_wide: list[str] = []
        self.unread = b""

    def read(self, seconds: float) -> bool:
        """Read the output for so long. Returns whether the program still runs."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                try:
                    data = os.read(self.fd, 1 << 16)
                except OSError:  # the program has ended
                    return False
                self._take(self.unread + data)
        return True

    def _take(self, data: bytes) -> None:
        end = data.rfind(b"\x1b") if b"\x1b" in data[-32:] else len(data)  # a code that is not whole yet
        with suppress(StopIteration):  # nor a letter
            end = next(i for i in range(end - 1, max(end - 4, -1), -1) if not letter_is_whole(data[i:end]))
        data, self.unread = data[:end], data[end:]
        at = 0
        for move in MOVES.finditer(data):
            self._write(data[at : move.start()])
            at = move.end()
            if move[1]:
                self.row, self.column = int(move[1]) - 1, int(move[2]) - 1
            elif move[3]:
                self.column += int(move[3])
            else:
                self.row, self.column = self.row + (move[0] == b"\n"), 0
        self._write(data[at:])

    def _write(self, data: bytes) -> None:
        text = CODES.sub(b"", data).decode(errors="replace")
        if self.column + len(text) > COLUMNS:
            self.too_wide.append(text)
        for letter in text:
            if self.row < ROWS and self.column < COLUMNS:
                self.screen[self.row][self.column] = letter
            self.column += 1

    def shows(self, pattern: str, seconds: float = 60) -> str:
        until = time.monotonic() + seconds
        while not re.search(pattern, self.text()):
            assert self.read(0.2) and time.monotonic() < until, f"no {pattern!r} in:\n{self.text()}"
        return self.text()

    def text(self) -> str:
        return "\n".join("".join(line).rstrip() for line in self.screen)

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def quits(self) -> None:
        self.press(b"q")
        while self.read(0.2):
            pass
        _, status = os.waitpid(self.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0 and not self.too_wide, self.too_wide


def test_gt_top_shows_running_work_within_80_columns_and_quits_by_a_key(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port)
    processes.script(MATMULS, f"localhost:{port}").wait_for("works")
    top = Terminal(sys.executable, "-P", "-m", "gt.scripts.top", "--port", str(port))
    try:
        shown = top.shows(r"matmul \d\d%")
        assert re.search(r"gt top +localhost:\d+ +1 workers, 1 clients", shown), shown
        assert re.search(r"█.* \d+% q +\d+ +[\d.]+ [kMG]?B", shown), shown
        top.press(b"s")
        top.shows("by busy")
        top.press(b"f")
        top.shows(r"by busy +client \S+:\d+")
        top.press(b"f")
        top.shows(r"by busy *\n")
        top.press(b"\r")
        assert "numpy on cpu" in top.shows("executes")
        top.press(b"p")
        top.shows("PAUSED")
        top.quits()
    finally:
        os.close(top.fd)


def test_gt_top_shows_the_stack_of_a_stuck_worker_chosen_by_arrows(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "first")
    processes.worker(port, "--id", "second")
    processes.script(STUCK, f"localhost:{port}").wait_for("works")
    top = Terminal(sys.executable, "-P", "-m", "gt.scripts.top", "--port", str(port))
    try:
        top.shows(r"2 workers, 1 clients")
        top.press(b"\r")
        down, up = b"\x1b[B", b"\x1b[A"
        for _ in range(30):  # until the one of both is chosen that has the product
            for key, chosen in ((up, r"> first.*\n  second"), (down, r"  first.*\n> second")):
                top.press(key)
                top.shows(chosen)
                if top.read(2) and "executes matmul" in top.text():
                    break
            else:
                continue
            break
        assert "in execute" in top.shows(r"executes matmul for [1-9]\d*\.\d s[^>]*File ")
        top.quits()
    finally:
        os.close(top.fd)
