"""Pages of the site that lie outside of docs/, such as CONTRIBUTING.md: copied to docs/reference, with their links changed."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "examples/README_SIGNALS.md": "signals", "CONTRIBUTING.md": "contributing", "AGENTS.md": "map", "CHANGELOG.md": "changes",
}  # fmt: skip
LINK = re.compile(r"(\]\()([^)\s#]+)([^)\s]*\))")


def moved(text: str, source: Path, folder: Path) -> str:
    """The text of a page, its links leading from this folder to where they led from its own, or to a page's copy."""

    def lead(found: re.Match[str]) -> str:
        target = found[2]
        if re.match(r"[a-z]+:", target):
            return found[0]
        path = (source.parent / target).resolve()
        name = PAGES.get(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
        if path == ROOT / "README.md":
            path = DOCS / "index.md"
        elif name is not None:
            path = DOCS / "reference" / f"{name}.md"
        return f"{found[1]}{os.path.relpath(path, folder)}{found[3]}"

    return LINK.sub(lead, text)


def outside(source: str) -> str:
    path = ROOT / source
    return moved(path.read_text(), path, DOCS / "reference")
