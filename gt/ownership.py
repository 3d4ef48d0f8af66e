"""Files that hold keys, or that are run: whether others could have written them, by the kernel's word."""

from __future__ import annotations

import os
import stat
from pathlib import Path

READ, WRITE = 0o044, 0o022


def why_not_own(path: str | Path, secret: bool = False) -> str:
    """Who else could have written a file or could write to a folder, or, of a secret one, read it; "" for nobody but this user,
    root, and the group that processes of this user belong to."""
    if not hasattr(os, "geteuid"):  # Windows has no such permissions
        return ""
    found = os.stat(path)
    mode, ours = stat.S_IMODE(found.st_mode), found.st_gid == os.getegid()
    if found.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {found.st_uid}"
    shared = WRITE | (READ if secret else 0)
    if mode & (shared & 0o007 if ours else shared):
        return f"{path} has mode {mode:o}"
    return ""
