"""Optimizers: updates of parameters, off the tape; and schedules of their rates."""

from gt.optim import lr_scheduler
from gt.optim.adaptive import Adagrad, Adam, AdamW, Lion, RMSprop
from gt.optim.lbfgs import LBFGS
from gt.optim.optimizer import Optimizer
from gt.optim.rates import ASGD, Adadelta, Adafactor, Adamax, NAdam, RAdam, Rprop
from gt.optim.sgd import SGD

__all__ = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Lion", "NAdam", "Optimizer",
           "RAdam", "RMSprop", "Rprop", "SGD", "lr_scheduler"]  # fmt: skip
