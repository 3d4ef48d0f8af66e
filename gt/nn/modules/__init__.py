"""`torch.nn.modules`: its submodules, from which scripts import, with the names of `gt.nn`."""

from gt.nn.modules import batchnorm, container, conv, linear, loss, module, utils
from gt.nn.modules.module import Module

__all__ = ["Module", "batchnorm", "container", "conv", "linear", "loss", "module", "utils"]
