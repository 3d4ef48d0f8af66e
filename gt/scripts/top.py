"""`python -m gt.scripts.top`: the same as `gt top`."""

from __future__ import annotations

import sys

from gt.scripts import guarded
from gt.watch.top_command import main

if __name__ == "__main__":
    sys.exit(guarded("top", main))
