"""`gt.data` by PyTorch's name for it."""

from gt.data import *  # noqa: F403
from gt.data import __all__ as __all__
