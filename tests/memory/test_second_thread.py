"""A second thread serves messages during long kernels, and at no other time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from gt.worker.second_thread import SecondThread

LONG = 30.0  # seconds after which a test has failed


class Pipe:
    """Messages of a test: `send` makes the descriptor ready, and `receive`, the second thread's `serve`, reads them."""

    def __init__(self) -> None:
        self.fd, self.end = os.pipe()
        self.served = threading.Semaphore(0)
        self.threads: list[str] = []

    def send(self) -> None:
        os.write(self.end, b".")

    def receive(self) -> None:
        os.read(self.fd, 1)
        self.threads.append(threading.current_thread().name)
        self.served.release()

    def wait(self) -> bool:
        return self.served.acquire(timeout=LONG)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.end)


def second(pipe: Pipe, serve: Callable[[], None] | None = None, several: bool = True, asked: bool = False) -> SecondThread:
    return SecondThread([pipe.fd], serve or pipe.receive, lambda work: work(), lambda: several, lambda: asked)


def test_messages_are_served_during_each_long_kernel(pipe: Pipe) -> None:
    thread = second(pipe)

    def kernel(n: int) -> int:
        for _ in range(n):
            pipe.send()
            assert pipe.wait(), "nobody served it during the kernel"
        return 2 * n

    assert [thread.run(kernel, n) for n in (1, 3, 0, 2)] == [2, 6, 0, 4]
    assert set(pipe.threads) == {"gt-short-runs"} and len(pipe.threads) == 6
    assert thread.state.locked(), "the worker's own thread has its state again"


def test_messages_between_kernels_are_left_to_the_worker_s_own_thread(pipe: Pipe) -> None:
    thread = second(pipe)
    for _ in range(50):
        pipe.send()
        pipe.receive()
        assert thread.run(int, "7") == 7
    pipe.send()
    while not thread.asleep:
        pass  # it has seen the message, and waits for the next long kernel
    assert "gt-short-runs" not in pipe.threads[-1:]
    assert thread.run(pipe.wait), "in the next kernel it serves what has waited"


def test_other_work_is_called_between_kernels_on_the_second_thread(pipe: Pipe) -> None:
    thread, called = second(pipe), threading.Event()
    thread.call(called.set)
    assert thread.thread is None and not called.is_set(), "no kernel has started it"
    threads: list[str] = []
    for _ in range(3):
        assert thread.run(int, "7") == 7
        called.clear()
        thread.call(lambda: threads.append(threading.current_thread().name))
        thread.call(called.set)
        pipe.send()  # as the departure of a client is
        assert called.wait(LONG), "nobody has called it"
        pipe.receive()
    assert threads == ["gt-short-runs"] * 3
    pipe.send()
    assert thread.run(pipe.wait), "it serves in the next kernel as before"


def test_a_client_that_is_alone_has_no_second_thread(pipe: Pipe) -> None:
    thread = second(pipe, several=False)
    assert thread.run(int, "7") == 7 and thread.thread is None


def test_shorter_kernels_use_it_for_interactive_clients(pipe: Pipe) -> None:
    thread = second(pipe)
    assert thread.run_shorter(int, "7") == 7 and thread.thread is None, "there are none"
    thread = second(pipe, asked=True)
    pipe.send()
    assert thread.run_shorter(pipe.wait) and not thread.for_all
    pipe.send()
    assert thread.run(pipe.wait) and thread.for_all


def test_the_kernel_s_error_is_raised_and_the_second_thread_s_is_raised_later(pipe: Pipe) -> None:
    def serve() -> None:
        pipe.receive()
        raise KeyError("lost")

    thread = second(pipe, serve)
    with pytest.raises(ValueError):
        thread.run(int, "no number")
    thread.check()
    pipe.send()
    assert thread.run(pipe.wait), "the kernel goes on"
    assert thread.thread is not None
    thread.thread.join(LONG)
    with pytest.raises(KeyError, match="lost"):
        thread.check()
