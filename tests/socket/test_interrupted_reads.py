"""Ctrl-C at each point of a read at which Python looks for signals: no instruction is lost, and nothing waits for ever."""

from __future__ import annotations

import inspect

from processes import Processes

from tests.memory.interrupting import interrupted_at

BEGIN = f"""
import signal, sys, gt
from gt.client.default import session
from collections.abc import Callable
from typing import Any

{inspect.getsource(interrupted_at)}
"""
SCRIPT = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background may ignore it
gt.connect(sys.argv[1])
x = gt.ones(2)
x.numpy()
point = 1
while True:
    y = x + 1
    if not interrupted_at(point, y.numpy):
        break
    found = y.tolist(), (x * 5).tolist(), len(session().replies)
    assert found == ([2.0, 2.0], [5.0, 5.0], 0), (point, found)
    point += 1
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print('points', point)

from gt.ops.table import spec_out
own, point = session(), 1
while True:
    a, b = x + 1, x + 2
    other = own.reply()  # as of another thread: the reader of b receives the answer to it
    own.flush(((other.ticket, a.handle.id, spec_out(a.handle.spec)),), wait=False)
    if not interrupted_at(point, b.numpy):
        break
    own.link.wait(other, 20.0)
    assert other.done, point
    own.replies.pop(other.ticket)
    point += 1
print('answers', point)
"""


def test_a_read_may_be_interrupted_anywhere(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port)
    script = processes.script(BEGIN + SCRIPT, f"localhost:{port}")
    assert script.ended() == 0, script.err
    _, points, _, answers = script.out.split()
    assert int(points) > 50 < int(answers)
