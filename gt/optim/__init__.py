"""Optimizers: updates of parameters, off the tape."""

from gt.optim.optimizer import Optimizer
from gt.optim.sgd import SGD

__all__ = ["Optimizer", "SGD"]
