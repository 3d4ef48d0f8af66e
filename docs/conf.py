"""How Sphinx builds the site: `make docs`. The pages of docs/reference are written first, from the code (tools/reference)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
os.environ.setdefault("GT_BACKEND", "numpy")
os.environ["GT_NATIVE"] = "0"  # functions written in C do not say their parameters

import reference  # noqa: E402
from reference.outside import moved  # noqa: E402

import gt  # noqa: E402

project = "GT"
author = "the GT developers"
version = release = gt.__version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"GT {gt.__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
suppress_warnings = ["misc.highlighting_failure"]  # outputs that are shown as they are printed


def lead_to_copies(app: Any, page: str, source: list[str]) -> None:
    """Links to pages outside of docs/ lead to their copies in the site."""
    path = Path(app.srcdir) / f"{page}.md"
    if path.parent.name != "reference":
        source[0] = moved(source[0], path, path.parent)


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir) / "reference"))
    app.connect("source-read", lead_to_copies)
