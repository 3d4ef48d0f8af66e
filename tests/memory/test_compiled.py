"""Traces that are compiled: the compiled callable really runs, gives the results of the straight-line function, and where it
cannot be had or is wrong, that is counted and said."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.worker.engine.torch import inductor

from .compiling import arithmetic, compilers, compiling, loop, model, settle, stats

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the compiler's own
    pytest.mark.default("GT_TRACE", "GT_WORKER_BATCH_SIZE"),
]


@pytest.fixture(scope="module", autouse=True)
def compiler_known() -> None:
    """No test waits for the first use of Inductor on a machine, which tries the processor's vector instructions and compiles
    headers: 30 s of CPU time on x86-64, several minutes where other processes are busy."""
    torch.compile(lambda x: x.exp() + 1)(torch.ones(64))


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("GT_AUTO_COMPILE", "1")
    return monkeypatch


def as_it_is(function: Any, samples: list) -> Any:
    """A compiler that changes nothing."""
    return function


OPTIMIZERS = {
    "momentum": lambda p: gt.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: gt.optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_compiled_training_step_trains_and_no_rate_compiles_it_anew(auto: Any, optimizer: str) -> None:
    def rate(i: int) -> float:
        return 0.02 / (i + 1)

    with compiling() as c:
        mine = loop(c, model(OPTIMIZERS[optimizer], rate), 20)
        found = stats(c)
        assert found["compiled_calls"] == 12 and found["compilations"] == 1 == found["compiled"]
        assert found["compile_seconds"] > 0 and "fallbacks" not in found
        assert any("compiled in" in line for line in c.lines)
    with compiling(replay=False) as c:
        want = loop(c, model(OPTIMIZERS[optimizer], rate), 20)
        assert not stats(c)
    np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_compiled_dropout_draws_the_numbers_it_draws_otherwise(auto: Any) -> None:
    def step(i: int) -> Any:
        return gt.nn.functional.dropout(arithmetic(x, 0.5), 0.3) * 2.0

    found = {}
    for replay in (True, False):
        with compiling(replay) as c:
            gt.manual_seed(3)
            x = gt.ones(4, 4)
            found[replay] = loop(c, step, 14)
            assert not replay or stats(c)["compiled_calls"] == 6
    np.testing.assert_allclose(found[True], found[False], rtol=1e-5)


def test_an_input_laid_out_otherwise_is_copied_and_nobody_writes_into_it(auto: Any) -> None:
    with compiling() as c:
        square = gt.tensor(np.arange(16.0, dtype=np.float32).reshape(4, 4) / 16)
        turned = gt.tensor(np.ascontiguousarray(square.numpy().T)).T
        mine = loop(c, lambda i: arithmetic(square if i < 12 else turned, 0.5), 16)
        found = stats(c)
        assert found["compiled_calls"] == 8 and found["inputs_copied"] == 4
        np.testing.assert_array_equal(turned.numpy(), square.numpy())
    np.testing.assert_allclose(mine, [mine[0]] * 16, rtol=1e-6)


def test_a_result_that_is_a_view_of_an_input_has_memory_of_its_own(auto: Any) -> None:
    def step(i: int) -> Any:
        views.append(x.reshape(8, 2))
        views.append(x.T)
        return arithmetic(x, 0.5)

    views: list = []
    with compiling() as c:
        x = gt.ones(4, 4)
        loop(c, step, 14)
        c.settle()
        assert stats(c)["compiled_calls"] == 6
        table = c.workers[0].spaces["c0"].table
        mine = table[x.handle.id].untyped_storage().data_ptr()
        made = [table[v.handle.id].untyped_storage().data_ptr() for v in views]
        assert mine in made[:12] and mine not in made[16:]


def test_a_compiler_that_fails_is_counted_with_its_reason(auto: Any) -> None:
    def broken(function: Any, samples: list) -> Any:
        raise NotImplementedError("no such lowering\nand more")

    auto.setattr(inductor, "build", broken)
    with compiling() as c:
        values = loop(c, lambda i: arithmetic(gt.ones(3, 3), 0.5), 14)
        found = stats(c)
        assert found["fallbacks"] == 1
        assert found["fallback: torch.compile: NotImplementedError: no such lowering"] == 1
        assert found.get("compiled_calls", 0) == 0
        assert any("no such lowering" in line for line in c.lines)
    np.testing.assert_array_equal(values, [values[0]] * 14)


def test_a_compiled_form_whose_call_fails_is_left(auto: Any) -> None:
    def brittle(function: Any, samples: list) -> Any:
        calls = iter(range(100))

        def run(*xs: Any) -> Any:
            if next(calls) == 3:
                raise RuntimeError("a kernel gave up")
            return function(*xs)

        return run

    auto.setattr(inductor, "build", brittle)
    with compiling() as c:
        values = loop(c, model(OPTIMIZERS["adamw"], lambda i: 0.01), 20)
        assert stats(c)["fallback: its call failed: RuntimeError: a kernel gave up"] == 1
    with compiling(replay=False) as c:
        np.testing.assert_allclose(values, loop(c, model(OPTIMIZERS["adamw"], lambda i: 0.01), 20), rtol=1e-5)


def wrong(function: Any, samples: list) -> Any:
    return lambda *xs: tuple(m * 1.01 for m in function(*xs))


@pytest.mark.parametrize("check", [False, True])
def test_a_wrong_compiled_form_is_found_out_by_the_check(auto: Any, check: bool) -> None:
    auto.setattr(inductor, "build", wrong)
    if check:
        auto.setenv("GT_CHECK_COMPILED", "1")
    with compiling() as c:
        values = loop(c, lambda i: arithmetic(gt.ones(3, 3), 0.5), 14)
        found = stats(c)
    right = [np.allclose(v, values[0], rtol=1e-5) for v in values]
    if check:
        assert all(right) and "compiled_calls" not in found
        assert found["fallback: compiled, its result 0 differs from that of the straight-line function"] == 1
    else:  # it is the compiled form that ran
        ran = found["compiled_calls"]  # those after the wait, and as many before as the background was quick
        assert 6 <= ran <= 10 and right == [True] * (14 - int(ran)) + [False] * int(ran)


def test_a_compiled_form_of_another_dtype_is_never_run(auto: Any) -> None:
    auto.setattr(inductor, "build", lambda f, samples: lambda *xs: tuple(m.double() for m in f(*xs)))
    with compiling() as c:
        loop(c, lambda i: arithmetic(gt.ones(3, 3), 0.5), 14)
        assert [name for name in stats(c) if "torch.float64[3, 3]" in name]


def test_one_trace_at_a_time_is_compiled_while_the_others_are_served(auto: Any) -> None:
    go, under_way, most = threading.Event(), [], []

    def slow(function: Any, samples: list) -> Any:
        under_way.append(function)
        most.append(len(under_way))
        assert go.wait(60)
        under_way.pop()
        return function

    auto.setattr(inductor, "build", slow)
    with compiling() as c:
        values = []
        for _ in range(12):  # neither is ready, both are served
            for n in (3, 4):
                values.append(arithmetic(gt.ones(n, n), 0.5).numpy()[0, 0])
        assert stats(c).get("compiled_calls", 0) == 0 and stats(c)["calls"] >= 16
        assert sum(f.thread is not None for f in compilers(c)) == 2
        go.set()
        settle(c)
        for n in (3, 4):
            values.append(arithmetic(gt.ones(n, n), 0.5).numpy()[0, 0])
        assert stats(c)["compiled_calls"] == 2 and stats(c)["compilations"] == 2
        assert most == [1, 1]
    np.testing.assert_allclose(values, [values[0], values[1]] * 13)


@pytest.mark.default("GT_AUTO_COMPILE")
def test_a_signal_with_compile_true_has_its_ops_compiled_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "build", as_it_is)

    def step(i: int) -> Any:
        y = arithmetic(x, 0.5)
        with gt.signal.context("hot"):
            y = arithmetic(y, 0.25)
        return arithmetic(y, 0.125)

    found = {}
    for compile in (True, False):
        with compiling() as c:
            gt.register_config("hot", gt.SignalConfig(compile=compile))
            x = gt.ones(3, 3)
            found[compile] = loop(c, step, 20)
            hot = compilers(c)
            assert len(hot) == compile
            if compile:
                assert stats(c)["compiled_calls"] == 12 and stats(c)["traces"] > 1
                assert {r.kind.signal for r in hot[0].program.kinds.values()} == {"hot"}
    np.testing.assert_allclose(found[True], found[False], rtol=1e-6)


def test_a_program_of_a_client_that_has_left_is_not_compiled(auto: pytest.MonkeyPatch) -> None:
    auto.setattr(inductor, "build", as_it_is)
    with inductor._turns, gt.testing.cluster(1, "pytorch") as c:  # another one is being compiled
        x = gt.ones(3, 3)
        for number in range(20):
            arithmetic(x, number).numpy()
        waiting = [found for found in compilers(c) if found.thread is not None]
    inductor.join()
    assert waiting and [(w.built, w.compiled, w.failure) for w in waiting] == [(0, None, "")] * len(waiting)


TWO_THREADS = """
import gc, threading
from torch._subclasses.fake_tensor import FakeTensorMode
from gt.worker.engine.torch import inductor

def trace():
    with FakeTensorMode():
        pass

inductor.keep_guard()
for _ in range(20):
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    kept = [bytearray(n) for n in range(16, 128) for _ in range(50)]  # the memory that a thread freed has another value now
print("traced")
"""


def test_programs_are_traced_in_one_thread_after_another() -> None:
    """CUDA builds of PyTorch up to 2.11 without a GPU end with a segmentation fault without the guard."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", TWO_THREADS], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "traced\n"), done.stderr


AT_THE_END = """
import time
import gt
from gt.testing import cluster
from gt.worker.engine.torch import inductor

class Refused(Exception):
    def __del__(self):  # the compiler is done; its thread frees memory a while longer
        time.sleep(0.3)
        print("freed", flush=True)

def slow(function, samples):
    print("begins", flush=True)
    time.sleep(0.3)
    print("ends", flush=True)
    raise Refused

inductor.build = slow
with cluster(1, "pytorch") as c:
    x = gt.ones(2)
    while not inductor.busy():
        x = ((x * 2.0 + 1.0).tanh() - 0.5).exp()
        x.numpy()
"""


def test_a_process_that_ends_while_it_compiles_waits_for_that() -> None:
    """Else Python ends the thread in the middle of the compiler, which aborts the process."""
    done = subprocess.run([sys.executable, "-c", AT_THE_END], env={**os.environ, "GT_AUTO_COMPILE": "1"}, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"begins\nends\nfreed\n"), done.stderr
