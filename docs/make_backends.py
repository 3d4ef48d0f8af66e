"""Write what `list_backends` finds here into the table of docs/backends.md."""

import re
from pathlib import Path

from gt import backends
from gt.backends.listing import markdown

PAGE = Path(__file__).parent / "backends.md"


def with_table(page: str, rows: list[dict]) -> str:
    begin, end = "<!-- table: made by docs/make_backends.py -->", "<!-- end -->"
    pattern = re.escape(begin) + ".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{markdown(rows)}\n{end}", page, flags=re.S)


if __name__ == "__main__":
    found = [backends.get_backend_info(row.name) for row in backends.ROWS]
    PAGE.write_text(with_table(PAGE.read_text(), found))
