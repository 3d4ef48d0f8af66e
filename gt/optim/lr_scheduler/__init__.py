"""Schedules: how the rates of an optimizer's groups change from step to step."""

from gt.optim.lr_scheduler.combined import ChainedScheduler, ReduceLROnPlateau, SequentialLR
from gt.optim.lr_scheduler.cycles import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from gt.optim.lr_scheduler.decay import (
    ConstantLR,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)
from gt.optim.lr_scheduler.schedule import LRScheduler

__all__ = ["ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
           "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
           "ReduceLROnPlateau", "SequentialLR", "StepLR"]  # fmt: skip

_LRScheduler = LRScheduler  # its older name, from which scripts derive schedules of their own
