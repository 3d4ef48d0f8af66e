"""Tools by the names that the documents give them; each is also a subcommand of `gt`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gt.errors import GTError


def guarded(name: str, main: Callable[[], int]) -> int:
    """Run a tool; an error that a user can correct is one line, not a traceback."""
    try:
        return main()
    except GTError as failed:
        print(f"gt {name}: {failed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
