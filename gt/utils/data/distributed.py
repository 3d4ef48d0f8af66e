"""`torch.utils.data.distributed`, for scripts that import from there."""

from gt.data import DistributedSampler

__all__ = ["DistributedSampler"]
