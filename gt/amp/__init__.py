"""Mixed precision: products in 16 bits, ops that need precision in 32; and losses scaled so that small gradients live."""

from gt import missing_names
from gt.amp.casting import autocast, custom_bwd, custom_fwd, get_autocast_dtype, is_autocast_available, is_autocast_enabled
from gt.amp.scaling import GradScaler
from gt.import_paths import add_files

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "get_autocast_dtype", "is_autocast_available"]
__all__ += ["is_autocast_enabled"]

add_files(globals(), {"autocast_mode": "autocast custom_bwd custom_fwd is_autocast_available", "grad_scaler": "GradScaler"})
__getattr__ = missing_names.of(__name__)
