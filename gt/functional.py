"""`torch.functional`: functions of `gt`, for scripts that import them from there."""

from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS

globals().update(FUNCTIONS)
__all__ = ["Tensor"]
