"""Runs of instructions on small float32 tensors, by kernels in C (`small_run.c`): `steps.py` has the kernels of rows, `plan.py`
the memory and the order of a run. Without the C, which a host without a compiler has not, or with `GT_NATIVE=0`, there are
none."""

from __future__ import annotations

from typing import Any

from gt.native_modules import native

NATIVE: Any = native("gt.small._small_run")
