"""PyTorch's `utils` that belong to training."""

from gt import missing_names
from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]

__getattr__ = missing_names.of(__name__)
