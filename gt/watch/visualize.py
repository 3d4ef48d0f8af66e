"""`gt visualize`: a log or a capture as a picture (PNG, SVG) or an interactive page (HTML)."""

from __future__ import annotations

import argparse
import json
from importlib import resources
from pathlib import Path
from typing import Any

from gt.errors import GTError
from gt.watch.chart import Chart, chart, colour
from gt.watch.log_reader import read

SUMMARY = "draw a log or a capture as a timeline"
KINDS = (".png", ".svg", ".html")
MANY = 2000  # most arrows of a picture: more could not be distinguished


def arguments(p: argparse.ArgumentParser) -> argparse.ArgumentParser:
    p.add_argument("log", help="an instruction log, or a capture of `gt trace`")
    p.add_argument("--output", default="timeline.png", help="file to write, in .png, .svg or .html (default: timeline.png)")
    p.add_argument("--dpi", type=int, default=120, help="dots per inch of a PNG (default: 120)")
    p.add_argument("--width", type=float, default=14.0, help="width in inches (default: 14)")
    p.add_argument("--height", type=float, default=0.0, help="height in inches (default: by the number of lanes)")
    p.set_defaults(run=run)
    return p


def add_parser(commands: Any) -> None:
    arguments(commands.add_parser("visualize", help=SUMMARY, description=SUMMARY))


def draw(drawn: Chart, path: Path, dpi: int = 120, width: float = 14.0, height: float = 0.0) -> None:
    """A picture: lanes, bars by group of ops with their true durations, arrows for batches and collectives."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as absent:
        raise GTError("pictures need matplotlib: `pip install matplotlib`, or write an .html file") from absent
    lanes, scale = drawn.lanes, 1e3
    figure = Figure(figsize=(width, height or 1.4 + 0.55 * len(lanes)), dpi=dpi, layout="constrained")
    axes = figure.subplots()
    for group in drawn.groups:
        for lane in range(len(lanes)):
            bars = [b for b in drawn.bars if b.lane == lane and b.group == group]
            if bars:
                least = drawn.seconds / 2000
                spans = [(b.start * scale, max(b.stop - b.start, least) * scale) for b in bars]
                high = 0.36 if group in ("collective", "wait", "batch") else 0.72
                axes.broken_barh(spans, (lane - high / 2, high), facecolors=colour(group))
    for arrow in drawn.arrows[:MANY]:
        tint = "#ff725c" if arrow.sort == "collective" else "#55555566"
        style = {"arrowstyle": "->", "color": tint, "lw": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (arrow.to * scale, arrow.target), (arrow.at * scale, arrow.source), arrowprops=style)
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, max(drawn.seconds, 1e-9) * scale)
    axes.set_xlabel("milliseconds")
    axes.grid(axis="x", color="#00000014")
    patches = [Patch(color=colour(g), label=g) for g in drawn.groups]
    if patches:
        figure.legend(handles=patches, loc="outside upper center", ncols=min(8, len(patches)), frameon=False)
    figure.savefig(path)


def data(drawn: Chart) -> dict[str, Any]:
    """A chart as JSON data for the page."""
    return {
        "lanes": drawn.lanes, "seconds": drawn.seconds, "colours": {g: colour(g) for g in drawn.groups},
        "bars": [[b.lane, b.start, b.stop, b.name, b.group, b.client, b.line, b.nbytes] for b in drawn.bars],
        "arrows": [[a.source, a.at, a.target, a.to, a.sort, a.name] for a in drawn.arrows],
    }  # fmt: skip


def page(drawn: Chart, title: str) -> str:
    """A self-contained page, with its data and script."""
    static = resources.files("gt.watch") / "static"
    script = (static / "timeline.js").read_text()
    text = (static / "timeline.html").read_text()
    safe = json.dumps(data(drawn), separators=(",", ":")).replace("<", "\\u003c")  # a user's line may contain </script>
    escaped = title.replace("&", "&amp;").replace("<", "&lt;")
    return text.replace("%TITLE%", escaped).replace("%SCRIPT%", script).replace("%DATA%", safe)


def run(args: argparse.Namespace) -> int:
    path = Path(args.output)
    if path.suffix not in KINDS:
        raise GTError(f"cannot write {path}: a picture is {', '.join(KINDS)}")
    drawn = chart(read(args.log))
    try:
        if path.suffix == ".html":
            path.write_text(page(drawn, f"GT: {Path(args.log).name}"))
        else:
            draw(drawn, path, args.dpi, args.width, args.height)
    except OSError as wrong:
        raise GTError(f"cannot write {path}: {wrong.strerror}") from wrong
    print(f"wrote {path}: {len(drawn.bars)} bars and {len(drawn.arrows)} arrows on {len(drawn.lanes)} lanes")
    return 0


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="gt visualize", description=SUMMARY)
    return run(arguments(p).parse_args(argv))
