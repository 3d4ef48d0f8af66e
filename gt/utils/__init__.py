"""PyTorch's `utils` that belong to training."""

from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
