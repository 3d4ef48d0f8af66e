"""`torch.nn.modules.module`."""

from gt.nn.module import Module

__all__ = ["Module"]
