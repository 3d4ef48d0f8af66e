"""Modules, functions, losses and optimizers, with PyTorch's names."""

from gt.nn import functional
from gt.nn.layers import Linear
from gt.nn.losses import MSELoss, mse_loss
from gt.nn.module import Module, Parameter
from gt.optim import SGD, Optimizer

__all__ = ["Linear", "MSELoss", "Module", "Optimizer", "Parameter", "SGD", "functional", "mse_loss"]
