"""The drawing of docs/design/life.md: python tools/drawings.py

The stations of an instruction, each in the lane of its process, joined in order. The page describes each under its number and
links to the function named here; a test compares the two, and the functions with the code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LANES = ("client", "dispatcher", "worker")
COLOURS = {"client": "#3268d6", "dispatcher": "#a8620a", "worker": "#1f8a4c"}
WIDE, HIGH, GAP, LEFT, TOP = 172, 64, 22, 110, 34


class Station(NamedTuple):
    lane: str
    title: str
    file: str
    function: str


STATIONS = (
    Station("client", "an op is called", "gt/client/apply.py", "reference"),
    Station("client", "buffered", "gt/client/session.py", "due"),
    Station("client", "repeats folded", "gt/client/tracer.py", "fold"),
    Station("client", "a batch is sent", "gt/client/session.py", "_flush"),
    Station("dispatcher", "read and checked", "gt/dispatcher/core.py", "handle"),
    Station("dispatcher", "planned", "gt/dispatcher/plan.py", "choose"),
    Station("dispatcher", "rewritten for workers", "gt/dispatcher/rewrite.py", "rewrite"),
    Station("worker", "its client's turn", "gt/worker/fair_queue.py", "next"),
    Station("worker", "executed", "gt/worker/executor.py", "execute"),
    Station("worker", "collectives", "gt/worker/executor.py", "_collective"),
    Station("worker", "the read is answered", "gt/worker/transfers.py", "answer"),
    Station("client", "the value arrives", "gt/client/incoming.py", "_value"),
)


def places() -> list[tuple[float, float]]:
    """The left upper corner of each station: one column for each but the last, which stands above its predecessor."""
    columns = [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 4]
    return [(LEFT + c * (WIDE + GAP), TOP + LANES.index(s.lane) * (HIGH + 46)) for c, s in zip(columns, STATIONS)]


def box(number: int, station: Station, x: float, y: float) -> str:
    colour = COLOURS[station.lane]
    module = station.file.removeprefix("gt/")
    return (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="7" fill="#fff" stroke="{colour}" stroke-width="1.6"/>'
        f'<circle cx="{x}" cy="{y}" r="11" fill="{colour}"/>'
        f'<text x="{x}" y="{y + 4}" fill="#fff" font-size="12" font-weight="bold" text-anchor="middle">{number}</text>'
        f'<text x="{x + 14}" y="{y + 28}" font-size="14" fill="#1b1f24">{station.title}</text>'
        f'<text x="{x + 14}" y="{y + 48}" font-size="11" fill="#59636e">{module}</text>'
    )


def arrow(a: tuple[float, float], b: tuple[float, float]) -> str:
    """Along a lane from side to side; between lanes from edge to edge, around the corner where it goes back."""
    (x1, y1), (x2, y2) = a, b
    if y1 == y2:
        path = f"M{x1 + WIDE} {y1 + HIGH / 2} H{x2 - 3}"
    elif y2 > y1:
        half = (y1 + HIGH + y2) / 2
        path = f"M{x1 + WIDE / 2} {y1 + HIGH} V{half} H{x2 + WIDE / 2} V{y2 - 3}"
    else:
        path = f"M{x1 + WIDE - 14} {y1} V{y2 + HIGH + 3}"
    return f'<path d="{path}" fill="none" stroke="#59636e" stroke-width="1.4" marker-end="url(#end)"/>'


def life() -> str:
    at = places()
    wide, high = max(x for x, _ in at) + WIDE + 26, TOP + 3 * (HIGH + 46)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" font-family="sans-serif">',
        "<title>The stations of an instruction in client, dispatcher and worker</title>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#59636e"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" rx="10" fill="#f6f8fa"/>',
    ]
    for n, lane in enumerate(LANES):
        y = TOP + n * (HIGH + 46)
        lines.append(
            f'<text x="14" y="{y + HIGH / 2 + 5}" font-size="14" font-weight="bold" fill="{COLOURS[lane]}">{lane}</text>'
        )
    lines += [arrow(a, b) for a, b in zip(at, at[1:])]
    lines += [box(n, station, *place) for n, (station, place) in enumerate(zip(STATIONS, at), 1)]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    (PICTURES / "life.svg").write_text(life())
    print(PICTURES / "life.svg", file=sys.stderr)
