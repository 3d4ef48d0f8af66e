"""`torch.nn.modules.linear`."""

from gt.nn.linear import Bilinear, Identity, Linear

__all__ = ["Bilinear", "Identity", "Linear"]
