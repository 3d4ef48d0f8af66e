"""Processes that die, memory that runs out, people who interrupt: who waits is told, and work goes on."""

from __future__ import annotations

import os
import signal

import pytest
from processes import PATIENCE, Process, Processes, until

import gt
from gt import errors
from gt.client.default import session


@pytest.fixture
def pool(processes: Processes, disconnected: None) -> tuple[Processes, int, Process, Process]:
    """A server and a worker, and this process connected to them."""
    server, port = processes.server()
    worker = processes.worker(port, "--id", "first")
    gt.connect(f"localhost:{port}")
    return processes, port, server, worker


def read_in_thread(x: gt.Tensor) -> tuple[list, object]:
    """Begin a read elsewhere; its outcome is put in the list."""
    import threading

    found: list = []

    def read() -> None:
        try:
            found.append(x.numpy())
        except errors.GTError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    return found, thread


def test_a_killed_worker_is_named_to_waiting_clients_and_a_replacement_goes_on(pool: tuple) -> None:
    processes, port, _, worker = pool
    x = gt.ones(4)
    x.numpy()
    worker.kill(signal.SIGSTOP)  # so that the read below waits
    found, thread = read_in_thread(x + 1)
    until(lambda: session().replies, what="a read that waits")
    worker.kill()
    thread.join(PATIENCE)
    assert isinstance(found[0], errors.WorkerLost) and "first" in str(found[0])
    with pytest.raises(errors.WorkerLost, match="first"):
        (x * 2).numpy()
    processes.worker(port, "--id", "second")
    assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
    assert gt.tensor([1.0, 2.0]).tolist() == [1, 2]
    assert set(gt.debug.get_worker_stats()) == {"second"}


def test_a_replacement_may_have_the_name_of_the_one_it_replaces(pool: tuple) -> None:
    processes, port, _, worker = pool
    gt.tensor([1.0]).numpy()
    worker.kill()
    until(lambda: not session().workers, what="the loss is known")
    processes.worker(port, "--id", "first")
    assert gt.tensor([1.0, 2.0]).tolist() == [1, 2]


def test_work_written_while_there_is_no_worker_is_done_by_the_next(pool: tuple) -> None:
    processes, port, _, worker = pool
    gt.ones(4).numpy()
    worker.kill()
    until(lambda: not session().workers, what="the loss is known")
    y = gt.full((2,), 3.0) * 2
    processes.worker(port)
    assert y.tolist() == [6, 6]


def test_a_worker_that_is_told_to_end_does_so_and_is_seen_to(pool: tuple) -> None:
    _, _, _, worker = pool
    gt.ones(4).numpy()
    worker.kill(signal.SIGTERM)
    assert worker.ended(5) == 0
    until(lambda: not session().workers, what="the end is known")


def test_a_second_worker_s_death_leaves_the_first_one_s_clients_alone(pool: tuple) -> None:
    processes, port, _, _ = pool
    other = processes.worker(port, "--id", "other")
    x = gt.ones(4)
    x.numpy()
    other.kill()
    until(lambda: len(session().workers) == 1, what="the loss is known")
    assert (x + 1).tolist() == [2] * 4


def test_a_killed_dispatcher_is_told_to_waiting_clients_and_ends_its_workers(pool: tuple) -> None:
    _, _, server, worker = pool
    x = gt.ones(4)
    x.numpy()
    worker.kill(signal.SIGSTOP)
    found, thread = read_in_thread(x + 1)
    until(lambda: session().replies, what="a read that waits")
    server.kill()
    thread.join(PATIENCE)
    assert isinstance(found[0], errors.SessionLost) and "went away" in str(found[0])
    with pytest.raises(errors.SessionLost):
        x.numpy()
    worker.kill(signal.SIGCONT)
    assert worker.ended(5) == 0


def test_after_a_lost_dispatcher_one_can_connect_elsewhere(pool: tuple) -> None:
    processes, _, server, _ = pool
    x = gt.ones(4)
    x.numpy()
    server.kill()
    with pytest.raises(errors.SessionLost):
        until(lambda: x.numpy() is None, 5)
    _, port = processes.server()
    processes.worker(port)
    gt.connect(f"localhost:{port}")
    assert gt.ones(2).tolist() == [1, 1]


def test_an_auto_started_dispatcher_that_dies_is_an_error_and_leaves_nothing(processes: Processes) -> None:
    script = processes.script(
        """
        import gt
        from gt.client import default
        x = gt.ones(2); x.numpy()
        default._default.children.processes[0].kill()
        try:
            while True: x.numpy()
        except gt.errors.SessionLost as lost:
            print('lost')
        """
    )
    assert script.ended() == 0, script.err
    assert script.out == "lost\n"
    until(lambda: not processes.running(), 15, "nothing is left")


def test_an_auto_started_worker_that_dies_is_an_error_for_old_and_new_work(processes: Processes) -> None:
    script = processes.script(
        """
        import gt
        from gt.client import default
        x = gt.ones(2); x.numpy()
        default._default.children.workers[0].kill()
        def until_error(read):
            try:
                while True: read()
            except gt.errors.GTError as lost:
                print(type(lost).__name__, 'worker' in str(lost))
        until_error(lambda: x.numpy())
        until_error(lambda: gt.zeros(3).numpy())
        until_error(lambda: gt.tensor([1.0]).numpy())
        gt.disconnect()
        print(gt.ones(2).tolist())
        """
    )
    assert script.ended() == 0, script.err
    assert script.out.count("True") == 3 and script.out.endswith("[1.0, 1.0]\n"), script.out


HOLDER = """
import sys, gt
gt.connect(sys.argv[1])
held = [gt.ones(256, 256) for _ in range(50)]
held[-1].numpy()
print('holding'); input()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda s: s.name)
def test_a_client_that_dies_has_all_it_owned_freed(pool: tuple, how: signal.Signals) -> None:
    processes, port, _, _ = pool
    mine = gt.ones(4)
    mine.numpy()
    holder = processes.script(HOLDER, f"localhost:{port}").wait_for("holding")
    assert gt.debug.get_worker_stats()["first"]["tensors"] >= 51
    holder.kill(how)
    until(lambda: gt.debug.get_worker_stats()["first"]["tensors"] == 1, what="its tensors are freed")
    assert gt.debug.get_worker_stats()["first"]["clients"] == 1
    assert mine.tolist() == [1] * 4


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_no_room_on_a_worker_is_an_error_for_that_tensor_only(processes: Processes, disconnected: None, backend: str) -> None:
    _, port = processes.server()
    worker = processes.worker(port, "--memory", str(3 << 30), backend=backend)
    gt.connect(f"localhost:{port}")
    before = gt.ones(3)
    huge = gt.ones(1 << 20, 1 << 20)  # 4 TB
    after = huge.sum()
    with pytest.raises(errors.OutOfMemory) as caught:
        after.item()
    assert "huge = gt.ones(1 << 20, 1 << 20)" in str(caught.value) and "full" in str(caught.value)
    assert before.tolist() == [1, 1, 1] and (before + 1).tolist() == [2, 2, 2]
    held = [gt.zeros(256 << 20, dtype=gt.uint8) for _ in range(16)]  # 4 GB, one by one
    with pytest.raises(errors.OutOfMemory):
        held[-1][0].item()
    del held
    assert gt.zeros(256 << 20, dtype=gt.uint8)[0].item() == 0
    assert worker.popen.poll() is None


def test_ctrl_c_during_a_read_leaves_the_session_usable(processes: Processes) -> None:
    _, port = processes.server()
    worker = processes.worker(port)
    script = processes.script(
        """
        import sys, gt
        from gt.client.default import session
        gt.connect(sys.argv[1])
        x = gt.ones(2); x.numpy()
        print('ready'); input()
        y = x + 1
        try:
            print('reading')
            y.numpy()
        except KeyboardInterrupt:
            print('interrupted')
        input()
        print(y.tolist(), (x * 5).tolist(), len(session().replies))
        """,
        f"localhost:{port}",
    ).wait_for("ready")
    worker.kill(signal.SIGSTOP)
    script.go()
    script.wait_for("reading")
    os.kill(script.pid, signal.SIGINT)
    script.wait_for("interrupted")
    worker.kill(signal.SIGCONT)
    script.go()
    assert script.ended() == 0, script.err
    assert "[2.0, 2.0] [5.0, 5.0] 0" in script.out


def test_a_busy_worker_is_not_taken_for_a_dead_one(pool: tuple) -> None:
    """A kernel that runs for seconds keeps the worker from its sockets; nobody gives it up for that."""
    _, _, _, worker = pool
    x = gt.ones(4)
    x.numpy()
    worker.kill(signal.SIGSTOP)
    found, thread = read_in_thread(x + 1)
    thread.join(2.5)
    assert not found
    worker.kill(signal.SIGCONT)
    thread.join(10)
    assert found[0].tolist() == [2] * 4


def test_the_error_of_a_worker_has_the_user_s_line_and_the_worker_s(pool: tuple) -> None:
    x = gt.ones(2, 2)
    wrong = x.gather(0, gt.tensor([[7, 7]]))  # only the worker can know that no row is number 7
    with pytest.raises(errors.RemoteError) as caught:
        (wrong * 2).numpy()
    text = str(caught.value)
    assert "gather(float32[2, 2]" in text and "worker first (numpy on cpu)" in text and "there\n" in text
    assert "asked for at" in text and "test_bad_days.py" in text and "no row is number 7" in text
    assert (x + 1).tolist() == [[2, 2], [2, 2]]


def test_a_worker_starts_on_a_host_without_memory_and_its_tensors_fail(processes: Processes) -> None:
    server, port = processes.server()
    full = processes.start(
        "-c",
        "import psutil, sys, types; psutil.virtual_memory = lambda: types.SimpleNamespace(available=0, total=1 << 30)\n"
        "from gt.worker.__main__ import main; sys.exit(main(sys.argv[1:]))",
        "-p", str(port), "--backend", "numpy",
    )  # fmt: skip
    client = processes.script(
        """
        import sys, gt
        gt.connect(sys.argv[1])
        try: gt.ones(1 << 30).sum().item()
        except gt.errors.OutOfMemory: print("told", gt.ones(3).tolist())
        """,
        f"localhost:{port}",
    )
    assert client.ended() == 0, (client.err, full.err)
    assert client.out == "told [1.0, 1.0, 1.0]\n" and full.popen.poll() is None
