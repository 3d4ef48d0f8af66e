"""Optimizers: updates of parameters, off the tape; and schedules of their rates."""

from gt.optim import lr_scheduler
from gt.optim.adaptive import Adagrad, Adam, AdamW, Lion, RMSprop
from gt.optim.optimizer import Optimizer
from gt.optim.sgd import SGD

__all__ = ["Adagrad", "Adam", "AdamW", "Lion", "Optimizer", "RMSprop", "SGD", "lr_scheduler"]
