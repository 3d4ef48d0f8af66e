"""The client's hot path in C (native.c), where it was built when GT was installed. GT works the same without it, with ops that
cost the client's thread about twice as much; `GT_NATIVE=0` does without."""

from __future__ import annotations

from typing import Any

import gt.environment as environment

NATIVE: Any = None
if environment.NATIVE.value():
    try:
        from gt.client import _native as NATIVE  # type: ignore[no-redef,attr-defined]
    except ImportError:  # no compiler was there
        NATIVE = None
