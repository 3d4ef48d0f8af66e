"""The client's hot path in C (native.c), where it was built when GT was installed. GT works the same without it, with ops that
cost the client's thread about twice as much; `GT_NATIVE=0` does without."""

from __future__ import annotations

import os
from typing import Any

NATIVE: Any = None
if os.environ.get("GT_NATIVE", "1") not in ("", "0"):
    try:
        from gt.client import _native as NATIVE  # type: ignore[no-redef,attr-defined]
    except ImportError:  # no compiler was there
        NATIVE = None
