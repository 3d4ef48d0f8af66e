"""The examples run, in processes of their own, and reach the results that they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def printed(name: str, out: Path, *arguments: str, **more: str) -> str:
    """The output of an example."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments],
        capture_output=True, text=True, env=environment, timeout=600, cwd=out,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(name: str, out: Path, **more: str) -> str:
    """The output of an example in its quick mode, in which it draws a picture."""
    text = printed(name, out, "--quick", "--out", str(out), **more)
    picture = (out / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5000
    return text


@pytest.mark.slow
def test_digits_are_read(tmp_path: Path) -> None:
    found = re.search(r"([\d.]+)% of the test digits", run("mnist_like", tmp_path))
    assert found and float(found[1]) > 95


@pytest.mark.slow
def test_a_gpt_learns_as_pytorchs_does(tmp_path: Path) -> None:
    text = run("gpt", tmp_path)
    found = re.search(r"over 50 steps the losses of GT and PyTorch differ by at most ([\d.e+-]+)", text)
    assert found and float(found[1]) < 1e-3
    first, last = map(float, re.search(r"went from ([\d.]+) to ([\d.]+)", text).groups())
    assert last < first - 0.5 and len(text.split("writes:")[1]) > 80


@pytest.mark.slow
def test_a_kernel_writes_with_a_model_that_was_trained(tmp_path: Path) -> None:
    """The example itself holds the kernel's greedy tokens against the model's."""
    text = printed("decode", tmp_path, "--quick", "--backend", "cpu")
    first, last = map(float, re.search(r"went from ([\d.]+) to ([\d.]+)", text).groups())
    assert last < first - 0.5
    rate = re.search(r"4 texts at once, (\d+) tokens/s on backend cpu", text)
    assert rate and int(rate[1]) > 0 and all(f"\n{start}" in text for start in ("def ", "class ", "import ", "The "))


@pytest.mark.slow
def test_a_model_goes_from_pytorch_to_gt_and_back(tmp_path: Path) -> None:
    assert "100.0% of the points right" in run("finetune", tmp_path)
    assert (tmp_path / "tuned.safetensors").stat().st_size > 10_000


@pytest.mark.parametrize(
    "example, show",
    [
        *(pytest.param(name, run, marks=pytest.mark.slow) for name in ("gpt", "finetune")),
        pytest.param("tensor_parallel", printed, marks=pytest.mark.slow),
        pytest.param("signal_demo", printed, marks=pytest.mark.slow),
    ],  # fmt: skip
)
def test_replay_changes_nothing_that_an_example_prints(example: str, show: Callable[..., str], tmp_path: Path) -> None:
    """The others print times, ports or numbers that nobody seeded."""
    assert show(example, tmp_path) == show(example, tmp_path, GT_TRACE="0")


@pytest.mark.slow
def test_a_script_draws_its_own_timeline(tmp_path: Path) -> None:
    text = printed("visualize_demo", tmp_path, GT_BACKEND="numpy")
    found = re.search(r"(\d+) bars and (\d+) arrows on (.*)", text)
    assert found and int(found[1]) > 50 and int(found[2]) > 10 and found[3].count("worker ") == 2, text


@pytest.mark.slow
def test_two_scripts_share_a_worker(tmp_path: Path) -> None:
    text = printed("sharing", tmp_path, GT_BACKEND="numpy")
    questions = re.search(r"(\d+) questions", text)
    assert questions and int(questions[1]) > 0 and "over the quota: 268,435,456 bytes more" in text
    assert len(re.findall(r"client \d+:", text)) == 2 and "the trainer made" in text
