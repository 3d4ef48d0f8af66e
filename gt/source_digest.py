"""Which source a part in C was built from. setup.py uses this file without the package, so it imports nothing of it."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path

INCLUDE = re.compile(rb'^#include "(.+)"', re.MULTILINE)


def source_digest(path: Path) -> str:
    """Tells a C file and the files that it includes from other versions of them."""
    text = path.read_bytes()
    found = blake2b(text, digest_size=8)
    for included in INCLUDE.findall(text):
        found.update((path.parent / included.decode()).read_bytes())
    return found.hexdigest()
