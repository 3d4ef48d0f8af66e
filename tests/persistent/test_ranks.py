"""A model split over two processes gives the tokens that one process gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gt
from gt.persistent import choice
from tests.persistent.tiny import ROOT, config, environment, prompts, weights

pytest.importorskip("torch")


def run_ranks(tmp_path: Path, backend: str, family: str, size: int) -> list[Any]:
    command = [sys.executable, "-m", "tests.persistent.ranks", backend, family, str(tmp_path / "store")]
    settings = environment(OMP_NUM_THREADS="1")
    started = [
        subprocess.Popen(
            [*command, str(rank), str(size)], cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), ended
    return [json.loads(out) for out, _ in ended]


@pytest.mark.parametrize(
    "backend, family",
    [
        ("pytorch", "qwen3"),
        pytest.param("pytorch", "llama", marks=pytest.mark.slow),
        pytest.param("mkl", "qwen3", marks=pytest.mark.slow),
        pytest.param("mkldnn", "llama", marks=pytest.mark.slow),
    ],
)
def test_two_ranks_give_the_tokens_of_one(backend: str, family: str, tmp_path: Path) -> None:
    if reason := choice.reason_unavailable(backend):
        pytest.skip(reason)
    (first, shape), (second, _) = run_ranks(tmp_path, backend, family, 2)
    c = config(family, attention_bias=family == "llama", mlp_bias=family == "llama")
    kernel = gt.PersistentKernel(backend="cpu", page_size=4, max_seq_length=200, model=(c, weights(c)))
    ids = [kernel.add_request(prompt, temperature=t) for prompt, t in zip(prompts(5, 9, 2), (0.0, 0.0, 0.8))]
    kernel(steps=100)
    assert first == second == [kernel.tokens(id) for id in ids] and len(first[2]) == 102
    assert shape[4] == 1  # each rank holds one of the two key-value heads


@pytest.mark.parametrize("backend", ["cpu", "openmp"])
def test_a_backend_without_ranks_raises_its_reason(backend: str) -> None:
    if reason := choice.reason_unavailable(backend):
        pytest.skip(reason)
    with pytest.raises(ValueError, match=f"backend '{backend}' does not support world_size=2: it takes num_workers"):
        gt.PersistentKernel(backend=backend, world_size=2)


def test_a_model_that_cannot_be_split_is_refused() -> None:
    c = config(num_key_value_heads=1)
    with pytest.raises(ValueError, match="world_size 2 cannot split a model with 1 kv_heads"):
        gt.PersistentKernel(backend="pytorch", world_size=2, model=(c, weights(c)))
