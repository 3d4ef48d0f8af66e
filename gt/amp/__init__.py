"""Mixed precision: products in 16 bits, what needs range or precision in 32; and losses scaled so that small gradients live."""

from gt.amp.casting import autocast, get_autocast_dtype, is_autocast_enabled
from gt.amp.scaling import GradScaler

__all__ = ["GradScaler", "autocast", "get_autocast_dtype", "is_autocast_enabled"]
