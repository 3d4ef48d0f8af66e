"""Functions of the `nn` namespace."""

from gt.client.functions import FUNCTIONS as _FUNCTIONS
from gt.client.functions.products import linear
from gt.nn.losses import mse_loss

relu, sigmoid, tanh = (_FUNCTIONS[n] for n in ("relu", "sigmoid", "tanh"))

__all__ = ["linear", "mse_loss", "relu", "sigmoid", "tanh"]
