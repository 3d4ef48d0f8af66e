"""Optimizers: updates of parameters, off the tape; and schedules of their rates."""

from gt import missing_names
from gt.import_paths import add_files
from gt.optim import lr_scheduler, swa_utils
from gt.optim.adaptive import Adagrad, Adam, AdamW, Lion, RMSprop
from gt.optim.lbfgs import LBFGS
from gt.optim.matrices import Muon, SparseAdam
from gt.optim.optimizer import Optimizer
from gt.optim.rates import ASGD, Adadelta, Adafactor, Adamax, NAdam, RAdam, Rprop
from gt.optim.sgd import SGD

__all__ = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Lion", "Muon", "NAdam",
           "Optimizer", "RAdam", "RMSprop", "Rprop", "SGD", "SparseAdam", "lr_scheduler", "swa_utils"]  # fmt: skip

FILES = {
    "_adafactor": "Adafactor", "adadelta": "Adadelta", "adagrad": "Adagrad", "adam": "Adam", "adamax": "Adamax",
    "adamw": "AdamW", "asgd": "ASGD", "nadam": "NAdam", "radam": "RAdam", "rmsprop": "RMSprop",
    "rprop": "Rprop", "sparse_adam": "SparseAdam",
}  # fmt: skip
add_files(globals(), FILES)
__getattr__ = missing_names.of(__name__)
