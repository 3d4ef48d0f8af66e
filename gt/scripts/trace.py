"""`python -m gt.scripts.trace`: the same as `gt trace`."""

from __future__ import annotations

import sys

from gt.scripts import guarded
from gt.watch.trace import main

if __name__ == "__main__":
    sys.exit(guarded("trace", main))
