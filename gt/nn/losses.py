"""Losses."""

from __future__ import annotations

from gt.client.autograd import Tensor
from gt.client.functions.losses import mse_loss
from gt.nn.module import Module


class MSELoss(Module):
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return mse_loss(input, target, self.reduction)
