"""The state of a run of steps on the device: the position of each request, its new tokens, and where to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.persistent.sampling import uniforms

if TYPE_CHECKING:
    from gt.persistent.requests import Request

MOST_STEPS = 4096  # of one run without the host
MOST_STOPS = 64  # stop tokens


class DecodeState:
    """One row for every request of the batch. A row at position -1 has ended, or is empty."""

    def __init__(self, slots: int, table_width: int, device: Any) -> None:
        import torch

        def ints(*shape: int, dtype: Any = torch.int32) -> Any:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.slots, self.device = slots, device
        self.tokens, self.slot_of_row, self.counts, self.limits = (ints(slots) for _ in range(4))
        self.positions = ints(slots) - 1
        self.chosen = ints(slots)
        self.tables = ints(slots, table_width)
        self.made = ints(slots, MOST_STEPS)
        self.stop_at_first_end = ints(1)
        self.eos = ints(MOST_STOPS) - 1
        self.temperatures, self.top_p = (ints(slots, dtype=torch.float64) for _ in range(2))
        self.top_k = ints(slots, dtype=torch.int64)
        self.numbers = ints(slots, MOST_STEPS, dtype=torch.float64)

    def fill(self, requests: list[Request], steps: int, eos: tuple[int, ...], stop_at_first_end: bool) -> bool:
        """Set all rows; returns whether every request is greedy."""
        import torch

        count = len(requests)
        if len(eos) > MOST_STOPS:
            raise ValueError(f"eos_token_id on a GPU: expected at most {MOST_STOPS} tokens, got {len(eos)}")
        self.eos.copy_(torch.tensor([*eos, *[-1] * (MOST_STOPS - len(eos))], dtype=torch.int32))

        def put(to: Any, values: Any) -> None:
            to[:count].copy_(torch.from_numpy(np.asarray(values)))

        put(self.tokens, [r.tokens[-1] for r in requests])
        put(self.slot_of_row, [r.slot for r in requests])
        put(self.limits, [r.limit for r in requests])
        self.positions.fill_(-1)
        put(self.positions, [r.cached for r in requests])
        self.counts.zero_()
        self.stop_at_first_end.fill_(int(stop_at_first_end))
        self.write_tables([(r.slot, r.pages) for r in requests if r.slot is not None])
        greedy = all(r.sampling.temperature == 0 for r in requests)
        if not greedy:
            put(self.temperatures, [r.sampling.temperature for r in requests])
            put(self.top_p, [r.sampling.top_p for r in requests])
            put(self.top_k, [r.sampling.top_k for r in requests])
            numbers = np.stack([uniforms(r.seed, len(r.tokens), steps) for r in requests])
            self.numbers[:count, :steps].copy_(torch.from_numpy(numbers))
        return greedy

    def write_tables(self, held: list[tuple[int, list[int]]]) -> None:
        import torch

        tables = np.zeros(tuple(self.tables.shape), np.int32)
        for slot, pages in held:
            tables[slot, : len(pages)] = pages
        self.tables.copy_(torch.from_numpy(tables))


def choose_on_device(logits: Any, state: DecodeState, rows: int) -> None:
    """`state.chosen` from logits (rows, vocabulary) as gt/persistent/sampling.py chooses, without the host."""
    import torch

    greedy = state.temperatures[:rows] == 0
    scaled = logits.double() / torch.where(greedy, 1.0, state.temperatures[:rows])[:, None]
    ordered, order = torch.sort(scaled, dim=1, descending=True, stable=True)
    likely = torch.exp(ordered - ordered[:, :1])
    rank = torch.arange(logits.shape[1], device=logits.device)
    top_k = state.top_k[:rows, None]
    likely = torch.where((top_k > 0) & (rank >= top_k), 0.0, likely)
    cumulated = likely.cumsum(1)
    # The tokens before the one at which the sum reaches top_p of the whole, and that one.
    reached = cumulated >= (state.top_p[:rows, None] * cumulated[:, -1:])
    count = torch.where(state.top_p[:rows] < 1, reached.int().argmax(1) + 1, logits.shape[1])
    count = torch.where(top_k[:, 0] > 0, torch.minimum(count, top_k[:, 0]), count)
    total = cumulated.gather(1, count[:, None] - 1)
    number = state.numbers[:rows].gather(1, state.counts[:rows, None].long())
    index = torch.searchsorted(cumulated, number * total, right=True)
    index = torch.minimum(index, count[:, None] - 1)
    sampled = order.gather(1, index)[:, 0]
    state.chosen[:rows].copy_(torch.where(greedy, order[:, 0], sampled))
