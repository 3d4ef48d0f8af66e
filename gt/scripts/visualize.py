"""`python -m gt.scripts.visualize`: the same as `gt visualize`."""

from __future__ import annotations

import sys

from gt.scripts import guarded
from gt.watch.visualize import main

if __name__ == "__main__":
    sys.exit(guarded("visualize", main))
