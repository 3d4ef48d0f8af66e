"""`gt.data` by PyTorch's name for it."""

from gt import missing_names
from gt.data import *  # noqa: F403
from gt.data import __all__ as _names
from gt.import_paths import add_files
from gt.utils.data import dataloader, dataset, distributed, sampler

__all__ = [*_names, "dataloader", "dataset", "distributed", "sampler"]

add_files(globals(), {"_utils": "", "_utils.collate": "default_collate"})
__getattr__ = missing_names.of(__name__)
