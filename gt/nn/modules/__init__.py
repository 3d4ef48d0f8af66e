"""`torch.nn.modules`, by whose parts scripts import: each names what `gt.nn` has."""

from gt.nn.modules import batchnorm, container, conv, linear, loss, module, utils
from gt.nn.modules.module import Module

__all__ = ["Module", "batchnorm", "container", "conv", "linear", "loss", "module", "utils"]
