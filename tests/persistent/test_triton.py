"""The Triton kernels without a GPU: tokens and logits under Triton's interpreter against Hugging Face."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.persistent.test_huggingface import CASES, hugging_face_logits
from tests.persistent.tiny import ROOT, config, environment, prompts

reference = pytest.fixture(scope="module", name="reference")(hugging_face_logits)
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed: pip install triton"
)
# The interpreter takes a fifth of a second for a row and step of the models in CASES.
SMALL = dict(hidden_size=20, intermediate_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=37)
FAULTS = {
    "page length": ("+ t % page_size", "+ tl.minimum(t % page_size, page_size - 2)"),
    "rotary position": ("rotary_row = position", "rotary_row = position + (position >= 14)"),
    "softmax scale": ("k[None, :, :], 2) * scale", "k[None, :, :], 2) * scale * scale"),
    "mask": ("visible = position + 1", "visible = tl.maximum(position, 1)"),
    "head grouping": ("head = kv * group + g", "head = kv + KV_HEADS * g"),
    "missing norm": ("left = tl.where(is_k, left * factor *", "left = tl.where(is_k, left * 1.0 *"),
}


def interpret(tmp_path: Path, c: dict[str, Any], given: list[list[int]], steps: int, fault: Any = None, **options: Any) -> Any:
    case = dict(config=c, options=options, prompts=given, steps=steps, fault=fault)
    command = [sys.executable, "-W", "ignore", "-m", "tests.persistent.interpreted", json.dumps(case), str(tmp_path)]
    settings = environment(TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    done = subprocess.run(command, capture_output=True, text=True, env=settings, cwd=ROOT, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def compare(tokens: list[list[int]], logits: Any, given: list[list[int]], c: dict[str, Any], reference: Any) -> None:
    for made, last, prompt in zip(tokens, logits, given):
        expected = reference(c, made[:-1])[len(prompt) - 1 :]
        assert made[: len(prompt)] == prompt and made[len(prompt) :] == expected.argmax(-1).tolist()
        assert np.abs(np.array(last) - expected[-1]).max() < 1e-4


def test_tokens_and_logits_in_the_interpreter_equal_hugging_face(tmp_path: Path, reference: Callable[..., Any]) -> None:
    c, given = config(**SMALL, num_hidden_layers=1), prompts(13, 3, vocabulary=37)
    tokens, logits = interpret(tmp_path, c, given, 6, page_size=13)
    compare(tokens, logits, given, c, reference)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_hundred_tokens_in_the_interpreter_equal_hugging_face(
    case: str, tmp_path: Path, reference: Callable[..., Any]
) -> None:
    c, options, lengths = CASES[case]
    c, given = {**c, "num_hidden_layers": 1}, prompts(*lengths[:2])
    tokens, logits = interpret(tmp_path, c, given, 100, **options)
    compare(tokens, logits, given, c, reference)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_the_kernels_is_seen(fault: str, tmp_path: Path, reference: Callable[..., Any]) -> None:
    c, given = config(**{**SMALL, "num_key_value_heads": 2}, num_hidden_layers=1), prompts(13, 15, vocabulary=37)
    tokens, logits = interpret(tmp_path, c, given, 12, FAULTS[fault], page_size=13)
    with pytest.raises(AssertionError):
        compare(tokens, logits, given, c, reference)
