"""One training step of a small GPT on the CPU: forward, loss, backward, AdamW."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from measure import Result, best, times, took
from models import gpt as model_of
from models import gpt_step

import gt as GT

TOKENS, VOCABULARY = 256, 65


def _steps(lib: Any, batch: int, state: dict | None) -> tuple[Any, dict]:
    """A function that takes steps and returns milliseconds a step, the last loss read; and the state the model began with."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (batch, TOKENS + 1))
    model = model_of(lib)
    if state is not None:
        model.load_state_dict(state)
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3)
    data = [lib.tensor(a) for a in (ids[:, :-1].copy(), ids[:, 1:].copy(), np.arange(TOKENS))]

    def steps(n: int) -> float:
        def work() -> None:
            for _ in range(n):
                loss = gpt_step(lib, model, optimizer, *data)
            loss.item()

        return took(work) * 1e3 / n

    return steps, model.state_dict()


def gpt() -> Iterator[Result]:
    """6 layers, 384 wide, 256 tokens, of batch 1 and 8; both begin with the same weights."""
    for batch, n, rounds in ((1, 4, 6), (8, 2, 4)):
        theirs, state = _steps(torch, batch, None)
        ours, _ = _steps(GT, batch, {k: v.clone() for k, v in state.items()})
        ours(8), theirs(2)  # until the repeat is found, and the allocators are warm
        yield times(
            f"gpt-{batch}", *best(lambda ours=ours, n=n: ours(n), lambda theirs=theirs, n=n: theirs(n), rounds), "ms/step"
        )


CASES = {"gpt": gpt}
