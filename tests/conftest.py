"""Shared by all tests: a deadline each, and a quiet environment."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# One thread for PyTorch and NumPy, here and in all that tests start: the threads of a small product spin while they wait for
# each other, which takes hundreds of times its own time where other tests have the cores. Said before either is loaded; tests
# of threads say how many they take, and a caller may say more.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # as a worker on a CPU has it

# Python keeps the compiled form of GT's files, here and in all that tests start, whatever the caller sets: to compile them anew
# is half of the CPU time that a process takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A signal that the caller ignores, as `nohup make test` does, has its usual effect on processes that tests start.
for ignored in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, lambda *_: None)

FAILURES = os.environ.pop("TEST_FAILURES", None)  # the file for failures' names: not of tests that tests start

DEADLINE = 240  # seconds; a test that waits longer waits for something that will not come
SLOW_DEADLINE = 1200  # the same for a test that is marked as slow: it may start a whole cluster engine

# The same examples each time, so that a suite that passed passes; TEST_RANDOM=1 tries new ones.
settings.register_profile("gt", deadline=None, max_examples=50, derandomize=not os.environ.get("TEST_RANDOM"))
settings.load_profile("gt")


def pytest_configure(config: pytest.Config) -> None:
    """Tests that need no GPU see none, here and in all that they start: they are of the CPU's numbers, on any host."""
    if "not gpu" in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["HIP_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """Loaded modules stay: no collection of garbage need look through PyTorch and thousands of tests again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Until the end: else libraries whose objects are still there report them as lost."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names each failure in the file that `make test` shows at its end: after the summary, libraries may print much at exit."""
    if FAILURES:
        with open(FAILURES, "a") as file:
            for outcome in ("failed", "error"):
                for report in terminalreporter.stats.get(outcome, []):
                    reason = next((line for line in report.longreprtext.splitlines() if line.startswith("E ")), "")
                    print(f"{outcome} {report.nodeid} ({report.when}): {reason[1:].strip()}", file=file)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    limit = SLOW_DEADLINE if item.get_closest_marker("slow") else DEADLINE

    def expired(*_: Any) -> None:
        raise TimeoutError(f"{item.name} took longer than {limit} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# Variables that change the way GT computes and no result: the suite holds with each of them (`make test-variants`). All
# others of the caller's are taken away.
VARIANTS = ("GT_AUTO_COMPILE", "GT_LOCAL_ANSWERS", "GT_NATIVE", "GT_TRACE", "GT_WORKER_BATCH_SIZE")


@pytest.fixture(autouse=True, scope="session")
def plain_environment() -> Iterator[None]:
    """No variable of the caller's changes GT's behaviour here, but for those of VARIANTS."""
    saved = {k: os.environ.pop(k) for k in list(os.environ) if k.startswith("GT_") and k not in VARIANTS}
    yield
    os.environ.update(saved)


@pytest.fixture(autouse=True)
def onednn_on() -> Iterator[None]:
    """PyTorch itself turns oneDNN off, for good, at some products of bfloat16 on a CPU without instructions for them."""
    yield
    if torch := sys.modules.get("torch"):
        torch._C._set_mkldnn_enabled(True)


@pytest.fixture(autouse=True)
def own_variables(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`@pytest.mark.default("GT_TRACE")`: a test of that variable's effect runs without the caller's."""
    for name in {name for mark in request.node.iter_markers("default") for name in mark.args}:
        assert name in VARIANTS, name
        if name == "GT_NATIVE" and os.environ.get(name):  # it was read when GT was loaded
            pytest.skip(f"is about the part in C, and {name}={os.environ[name]}")
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def triton_loops() -> None:
    """Skips where Triton is not installed, or its interpreter cannot run loops up to an argument."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    probe = subprocess.run(
        [sys.executable, Path(__file__).parent / "tensor_ops" / "triton_loop.py"],
        capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "1"}, check=False,
    )  # fmt: skip
    if probe.stderr.startswith("Triton's interpreter cannot"):
        pytest.skip(f"{probe.stderr.strip()} (Triton {version('triton')}, NumPy {version('numpy')})")
    assert probe.returncode == 0, probe.stderr
