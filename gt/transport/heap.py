"""Return of free memory to the system by the C library's allocator."""

from __future__ import annotations

import ctypes

TRIM = "malloc_trim"


def trim() -> bool:
    """Return the free pages of all arenas of the C library to the system, if it is glibc. Returns whether it is."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # a system without a library of the process itself
        return False
    if not hasattr(library, TRIM):
        return False
    library[TRIM](0)
    return True
