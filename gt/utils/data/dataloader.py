"""`torch.utils.data.dataloader`, for scripts that import from there."""

from gt.data import DataLoader, default_collate

__all__ = ["DataLoader", "default_collate"]
