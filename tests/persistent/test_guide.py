"""Every Python block of the multi-backend guide, run as it is written there."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import gt
from gt.persistent import choice
from tests.persistent.tiny import config, weights

PAGE = (Path(__file__).parent / "guide.md").read_text()
BLOCKS = dict(re.findall(r"^## (.*?)\n\n```python\n(.*?)^```", PAGE, re.S | re.M))
CONFIG = config(num_hidden_layers=1)
PARAMETERS = dict(model=(CONFIG, weights(CONFIG)), prompts=[[1, 2, 3]])
NEEDS_CUDA = {"Method 1: Using PersistentKernel", "Custom Backend Configuration"}  # and have no fallback


@pytest.fixture(autouse=True)
def default_backend() -> Any:
    before = gt.backends._registry._default
    yield
    gt.backends._registry._default = before


def run(title: str) -> dict[str, Any]:
    code = re.sub(r"# \.\.\. (other )?parameters", "**PARAMETERS,", BLOCKS[title])
    names: dict[str, Any] = {"PARAMETERS": PARAMETERS, "yr": gt, "page_size": 16, "element_size": 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the fallbacks' own warning, which test_kernel.py expects
        exec(compile(code, title, "exec"), names)
    return names


CUDA = choice.reason_unavailable("cuda") is None


@pytest.mark.parametrize("title", [t for t in BLOCKS if t not in NEEDS_CUDA and t != "Benchmarking Backends"])
def test_a_block_of_the_guide_runs(title: str) -> None:
    names = run(title)
    if "ypk" in names:
        made = names["ypk"].compile()()
        assert [len(tokens) for tokens in made.values()] == [1]


@pytest.mark.parametrize("title", sorted(NEEDS_CUDA))
def test_a_block_that_asks_for_cuda_alone_runs_or_raises_its_reason(title: str) -> None:
    if CUDA:
        assert run(title)["ypk"].backend == "cuda"
        return
    with pytest.raises(ValueError, match="no backend for PersistentKernel: 'cuda' is not available: ."):
        run(title)


def test_the_blocks_that_fall_back_end_on_the_cpu() -> None:
    assert run("Method 2: Using Fallback Backends")["ypk"].backend == ("cuda" if CUDA else "cpu")
    assert run("Method 3: Setting Global Default")["ypk"].backend == "cpu"


def test_the_benchmark_times_every_backend_that_is_available(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    able = [name for name in gt.get_available_backends() if name != "cudnn"]  # which has no decode kernel
    monkeypatch.setattr(gt, "get_available_backends", lambda: able)
    run("Benchmarking Backends")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == able and "cpu" in able
    assert all(re.fullmatch(r"\w+: \d+\.\d\d ms/iteration", line) for line in lines)
