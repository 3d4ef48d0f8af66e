"""Text generation: PersistentKernel runs a decoder-only transformer over a paged key-value cache on one of several backends.

It is independent of GT's tensors: it uses neither dispatcher nor workers.
"""

from gt.persistent.kernel import PersistentKernel
from gt.persistent.pages import OutOfPages, pages_that_fit

__all__ = ["OutOfPages", "PersistentKernel", "pages_that_fit"]
