"""A language model's training loop as people write it: fresh batches from NumPy, AdamW, gradient clipping, a schedule, the loss
read every few steps. The same code for GT and PyTorch: `lib` is `gt` or `torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from models import gpt

VOCABULARY = 65


class LM:
    """6 layers, 384 wide, 256 tokens, batch 8, unless it is said otherwise."""

    def __init__(
        self, lib: Any, layers: int = 6, width: int = 384, tokens: int = 256, batch: int = 8, device: str = "cpu",
        state: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.lib, self.tokens, self.batch, self.device = lib, tokens, batch, device
        self.model = gpt(lib, layers, width, 6, tokens, VOCABULARY)
        if state is not None:
            self.model.load_state_dict(state)
        self.model.to(device)
        self.optimizer = lib.optim.AdamW(self.model.parameters(), lr=3e-4, weight_decay=0.1)
        self.schedule = lib.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=10_000)
        self.places = lib.tensor(np.arange(tokens)).to(device)
        self.random = np.random.default_rng(0)

    def data(self) -> tuple[Any, Any]:
        """A fresh batch: (batch, tokens) ids and the ids that follow them."""
        ids = self.random.integers(0, VOCABULARY, (self.batch, self.tokens + 1))
        return tuple(self.lib.tensor(np.ascontiguousarray(a)).to(self.device) for a in (ids[:, :-1], ids[:, 1:]))

    def step(self, ids: Any, targets: Any) -> Any:
        """One step of training; the loss."""
        lib = self.lib
        logits = self.model(ids, self.places)  # (batch, tokens, vocabulary)
        loss = lib.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        lib.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss

    def loop(self, steps: int, read: int, seen: Callable[[float], None] = lambda loss: None) -> None:
        """Train for so many steps, and read the loss every `read`."""
        for i in range(1, steps + 1):
            loss = self.step(*self.data())
            if i % read == 0:
                seen(loss.item())
