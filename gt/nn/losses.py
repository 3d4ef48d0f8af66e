"""Losses."""

from __future__ import annotations

from gt.client.autograd import Tensor
from gt.nn.module import Module


def reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"no reduction {reduction!r}: known are mean, sum, none")
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference."""
    return reduced((input - target) ** 2, reduction)


class MSELoss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return mse_loss(input, target, self.reduction)
