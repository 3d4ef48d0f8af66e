"""Ctrl-C waits until a client's state is whole again: an instruction that was taken from the buffer and not sent would be lost,
a read that was noted and not sent, or whose answer was received and not handled, would wait for ever. In C (interrupts.c) if it
was built when GT was installed, else in Python, which takes ten times as long; `GT_NATIVE=0` disables the C."""

from __future__ import annotations

import _signal  # the functions of `signal` look their arguments up among its enums, which takes four times as long
import sys
from signal import SIGINT
from threading import get_ident, main_thread
from typing import Any

from gt.native_modules import native

NATIVE: Any = native("gt.transport._interrupts")
MAIN = main_thread().ident


class Uninterrupted:
    """In the body of a `with` on the main thread the handler of Ctrl-C is called at the end; other threads have no signals."""

    def __init__(self) -> None:
        self.depth, self.came = 0, False
        self.handler: Any = None

    def __enter__(self) -> None:
        if get_ident() != MAIN:
            return
        if self.depth:
            self.depth += 1
            return
        handler = _signal.getsignal(SIGINT)
        if callable(handler):  # the system's own ends the process, or ignores the signal
            _signal.signal(SIGINT, self.note)
            self.handler, self.depth, self.came = handler, 1, False

    def __exit__(self, *_: object) -> None:
        if not self.depth or get_ident() != MAIN:
            return
        self.depth -= 1
        if not self.depth:
            _signal.signal(SIGINT, self.handler)
            if self.came:
                self.came = False
                self.handler(SIGINT, sys._getframe())

    def note(self, *_: object) -> None:
        self.came = True


UNINTERRUPTED: Uninterrupted = Uninterrupted() if NATIVE is None else NATIVE.Uninterrupted()
