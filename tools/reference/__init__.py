"""The reference of the site, written from the code: every public name with its signature, its rules and an example that ran.

`write(folder)` writes a page for each namespace, the tables of options, variables and statistics, and the site's pages that lie
elsewhere in the repository."""

from __future__ import annotations

from pathlib import Path

from reference.api import NAMESPACES, api_page
from reference.outside import PAGES, outside
from reference.tables import TABLES

INDEX = """# Reference

Written from the code when the site is built: every public name with its signature, its shape and dtype rules where an op of the
table computes it, and an example that was run on the NumPy engine.

```{{toctree}}
:maxdepth: 1

{pages}
```
"""


def write(folder: Path) -> None:
    """All pages. A page whose text has not changed keeps its time, so that Sphinx does not read it again."""
    folder.mkdir(exist_ok=True)
    pages = {name: page() for name, page in TABLES.items()}
    pages |= {namespace.page: api_page(namespace) for namespace in NAMESPACES}
    pages["index"] = INDEX.format(pages="\n".join(pages))
    pages |= {name: outside(source) for source, name in PAGES.items()}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
