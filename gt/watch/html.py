"""Statistics as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import Any

from gt.watch.stats import amount, ops_text


class HtmlStats(dict[str, dict[str, Any]]):
    """Workers' statistics by name, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        heads = ("#", "worker", "engine", "device", "ops", "tensors", "bytes", "queue", "idle", "what it did")
        rows = [
            (
                s["index"], name, s["engine"], s["device"], s["instructions"], s["tensors"], amount(s["bytes"]),
                s.get("queue", 0), f"{s.get('idle', 1.0):.0%}", ops_text(s["ops"]),
            )
            for name, s in self.items()
        ]  # fmt: skip
        lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
        head = "".join(f"<th>{name}</th>" for name in heads)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
