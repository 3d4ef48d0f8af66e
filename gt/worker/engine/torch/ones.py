"""Vectors of ones for products that are sums. On a GPU they are views of one that stays, which no graph has to fill."""

from __future__ import annotations

import torch

MOST = 1 << 20  # elements of the vector that stays
LEAST = 1 << 12
_kept: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}  # the last is the longest; graphs know all by address


def ones(n: int, like: torch.Tensor) -> torch.Tensor:
    """Ones of the dtype and device of another tensor, not to be written to."""
    if not like.is_cuda or n > MOST:
        return like.new_ones(n)
    kept = _kept.setdefault((like.dtype, like.device), [])
    if not kept or len(kept[-1]) < n:
        if torch.cuda.is_current_stream_capturing():  # its memory would be the graph's
            return like.new_ones(n)
        kept.append(like.new_ones(max(LEAST, 1 << (n - 1).bit_length())))
        torch.cuda.current_stream(like.device).synchronize()  # other clients' streams read it
    return kept[-1][:n]
