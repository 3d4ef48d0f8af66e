"""`import gt` and the first op start all that is needed, and it ends with the script."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from processes import Process, Processes, listening, until

QUICK = "import gt; print(gt.randn(2, 2).shape)"


def test_one_line_needs_nothing_else_and_nothing_else_is_printed(processes: Processes) -> None:
    script = processes.script("import gt; print(gt.full((2, 2), 1.5))")
    assert script.ended() == 0
    assert script.out == "tensor([[1.5000, 1.5000],\n        [1.5000, 1.5000]])\n" and script.err == ""
    until(lambda: not processes.running(), 15, "no process after the script")


def test_the_dispatcher_and_the_worker_have_processes_of_their_own(processes: Processes) -> None:
    code = "import gt; x = gt.ones(2); x.numpy(); print('up'); input()"
    script = processes.script(code, GT_ONE_PROCESS="0").wait_for("up")
    assert len(processes.running()) == 3
    script.go()
    assert script.ended() == 0
    until(lambda: not processes.running(), 15, "no process after the script")


SHOW = "from gt.client.default import session; print(session().link.address, *[w.address for w in session().workers])"


def nothing_left(processes: Processes, script: Process) -> None:
    """No address with a socket, no file, no shared memory by a name of GT's."""
    until(lambda: not listening(script.out), 5, "no socket after the end")  # a process's descriptors close after it is gone
    assert not list(processes.files.iterdir())
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("gt")]


CRASHES = {
    "an exception": "raise ValueError('wrong')",
    "exit in the middle": "import os; os._exit(3)",
    "a signal from itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "an abort": "import os; os.abort()",
}


@pytest.mark.parametrize("how", CRASHES)
def test_a_script_that_crashes_leaves_nothing_behind(processes: Processes, how: str) -> None:
    script = processes.script(
        f"""
        import gt, numpy as np
        x = gt.from_numpy(np.zeros((512, 1024), 'f4')); x.numpy()
        {SHOW}
        {CRASHES[how]}
        """
    )
    assert script.ended() != 0 and script.out.count("ipc://") == 2
    until(lambda: not processes.running(), 15, "no process after a crash")
    nothing_left(processes, script)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda s: s.name)
def test_a_script_that_is_ended_from_outside_leaves_nothing_behind(processes: Processes, how: signal.Signals) -> None:
    script = processes.script(f"import gt; x = gt.ones(2); x.numpy(); {SHOW}; print('up'); input()").wait_for("up")
    assert len(listening(script.out)) == 2
    script.kill(how)
    assert script.ended() != 0
    until(lambda: not processes.running(), 15, "no process after the end")
    nothing_left(processes, script)


def test_ctrl_c_at_a_prompt_reaches_the_script_and_not_its_server(processes: Processes) -> None:
    """A terminal sends the interrupt to the whole process group."""
    script = processes.script(
        """
        import gt
        x = gt.ones(2); x.numpy(); print('up')
        try:
            input()
        except KeyboardInterrupt:
            print('interrupted', (x + 1).tolist())
        """
    ).wait_for("up")
    os.killpg(script.pid, signal.SIGINT)
    script.wait_for("interrupted [2.0, 2.0]")
    assert script.ended() == 0


def test_gpu_workers_is_the_number_of_workers_to_start(processes: Processes) -> None:
    script = processes.script(
        """
        import gt
        gt.gpu_workers(3)
        gt.ones(2).numpy()
        stats = gt.debug.get_worker_stats
        while len(stats()) < 3: pass
        print(sorted(w['index'] for w in stats().values()), sorted(stats()))
        try:
            gt.gpu_workers(4)
        except RuntimeError as late:
            print(late)
        """
    )
    assert script.ended() == 0, script.err
    assert "[0, 1, 2] ['auto_worker_0', 'auto_worker_1', 'auto_worker_2']" in script.out
    assert "call gt.gpu_workers before the first op" in script.out


def test_many_scripts_run_side_by_side(processes: Processes) -> None:
    code = "import sys, gt; x = gt.full((8,), float(sys.argv[1])); print('sum', (x * 2).sum().item())"
    scripts = [processes.script(code, str(i)) for i in range(3)]
    for i, script in enumerate(scripts):
        assert script.ended(60) == 0, script.err
        assert script.out == f"sum {i * 16.0}\n"


def test_a_script_can_disconnect_and_begin_again(processes: Processes) -> None:
    script = processes.script(
        """
        import gt
        x = gt.ones(2); print(x.tolist(), gt.is_connected())
        gt.disconnect(); print(gt.is_connected())
        print(gt.zeros(2).tolist(), gt.is_connected())
        try:
            x + 1
        except RuntimeError as old:
            print(type(old).__name__)
        """
    )
    assert script.ended() == 0, script.err
    assert script.out == "[1.0, 1.0] True\nFalse\n[0.0, 0.0] True\nRuntimeError\n"


def test_a_script_that_ends_with_work_under_way_ends_at_once(processes: Processes) -> None:
    script = processes.script("import gt\nx = gt.ones(64, 64)\nfor _ in range(20000): x = x @ x\nprint('written')")
    assert script.ended() == 0 and script.err == ""


def test_threads_share_the_session_each_with_its_own_results(processes: Processes) -> None:
    script = processes.script(
        """
        import threading, gt
        found = {}
        def work(n):
            w = gt.full((4,), float(n), requires_grad=True)
            for _ in range(200): y = (w * w).sum()
            y.backward()
            found[n] = w.grad.tolist()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert found == {n: [2.0 * n] * 4 for n in range(6)}, found
        print('right')
        """
    )
    assert script.ended() == 0, script.err
    assert script.out == "right\n"


def test_a_session_outlives_the_thread_that_began_it(processes: Processes) -> None:
    script = processes.script(
        """
        import threading, gt
        kept = []
        t = threading.Thread(target=lambda: kept.append(gt.ones(2)))
        t.start(); t.join()
        print((kept[0] + 1).tolist(), [(kept[0] * i).tolist() for i in range(20)][-1])
        """
    )
    assert script.ended() == 0, script.err
    assert script.out == "[2.0, 2.0] [19.0, 19.0]\n"


def test_a_fork_that_outlives_the_script_does_not_keep_its_server(processes: Processes) -> None:
    script = processes.script(
        """
        import os, signal, sys, gt
        gt.ones(2).numpy()
        if os.fork() == 0:
            signal.pause()
        print('up'); sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    ).wait_for("up")
    script.ended()
    until(lambda: len(processes.running()) == 1, 15, "only the fork is left")
    [fork] = processes.running()
    fork.kill()


def test_a_server_that_cannot_start_is_an_error_with_its_reason(processes: Processes) -> None:
    script = processes.script(QUICK, GT_INSTRUCTION_LOG="/no/such/folder/log")
    assert script.ended() == 1
    assert "cannot write the instruction log" in script.err and "ConnectionFailed" in script.err


def test_children_are_told_apart_from_strangers(processes: Processes) -> None:
    """Processes that a script starts carry its mark, so the tests above would see an orphan."""
    script = processes.script("import gt; gt.ones(1).numpy(); print('up'); input()").wait_for("up")
    mine = {p.pid for p in psutil.Process(script.pid).children(recursive=True)} | {script.pid}
    assert mine == {p.pid for p in processes.running()}


WAITING = """
import os, signal, threading, time, numpy as np, gt
from gt.client import default
from gt.client.here import here
gt.gpu_workers(2)
for i in (0, 1):
    gt.register_config(f"w{i}", gt.SignalConfig(gt.ShardConfig(workers=[i])))
[first] = [name for name, stats in gt.debug.get_worker_stats().items() if stats["index"] == 0]
pid = default._default.children.workers[int(first[-1])].pid
session, read = here().session, []

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)

with gt.signal("w0"):
    x = gt.ones(3)
x.numpy()
os.kill(pid, signal.SIGSTOP)  # so that a read of its tensors waits
thread = threading.Thread(target=lambda: read.append((x + 1).sum().item()))
thread.start()
until(lambda: session.replies)
with gt.signal("w1"):
    y = gt.ones(3) + 1
until(lambda: not session.buffered())
assert y.tolist() == [2.0] * 3 and not read  # two threads wait at once
os.kill(pid, signal.SIGCONT)
thread.join()
assert read == [6.0] and session.link.thread.is_alive()
big = gt.from_numpy(np.ones(1 << 20, "f4"))  # memory comes back with the worker's message that it was read: a thread receives
print((big + 1)[0].item())
"""


def test_while_one_thread_waits_for_long_the_ops_of_another_are_sent(processes: Processes) -> None:
    script = processes.script(WAITING)
    assert script.ended(90) == 0, script.err
    assert script.out == "2.0\n", script.out
