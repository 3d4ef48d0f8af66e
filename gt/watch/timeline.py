"""The workers' recorded spans, and a picture of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from gt.transport.events import Joined, Watched
from gt.watch.events import Activity, Collective, Move, OpActivity, ProgramCall, Reader

WIDE, LEFT, LANE, BAR = (
    880,
    92,
    44,
    30,
)  # pixels of a picture: width, left margin, height of a worker's lane, height of its bars
WORK = ("#4269d0", "#3ca951", "#a463f2", "#6cc5b0", "#97bbf5", "#9c6b4e")  # a colour for each signal
COLLECTIVE = ("#ff8a3d", "#efb118", "#ff725c", "#ff8ab7")  # and for each collective


@dataclass(frozen=True, slots=True)
class Span:
    """A unit of work of a worker: an op, a trace, or, where `collective`, a collective until its end. Times are in seconds
    since the first span began."""

    worker: int
    name: str
    signal: str
    start: float
    stop: float
    collective: bool


Interval = tuple[float, float]


@dataclass(slots=True)
class Timeline:
    """The spans that `gt.debug.record()` recorded, sorted by start."""

    spans: list[Span] = field(default_factory=list)

    @property
    def workers(self) -> list[int]:
        return sorted({s.worker for s in self.spans})

    def busy(self, worker: int) -> list[Interval]:
        """The intervals in which a worker computed; waiting for peers is left out."""
        return merged((s.start, s.stop) for s in self.spans if s.worker == worker and not s.collective)

    def together(self, one: int, other: int) -> float:
        """For how many seconds two workers computed at the same time."""
        return common(self.busy(one), self.busy(other))

    def draw(self, path: str | Path, title: str = "") -> None:
        """Write an SVG picture: a lane for each worker, a colour for each signal and each collective.

        >>> with gt.debug.record() as timeline:
        ...     y = gt.ones(2, 2) @ gt.ones(2, 2)
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     timeline.draw(f"{folder}/times.svg")
        """
        Path(path).write_text(picture(self, title))


class LastSpans:
    """The last `keep` spans of each worker, from the event stream. Times of several hosts agree as far as their clocks do."""

    def __init__(self, keep: int) -> None:
        self.keep, self.reader = keep, Reader()
        self.kept: dict[str, deque[Activity]] = {}
        self.indices: dict[str, int] = {}

    def observe(self, watched: Watched) -> None:
        for item in self.reader.read(watched.events):
            match item:
                case Joined(name, _, index) if index >= 0:
                    self.indices[name] = index
                case OpActivity() | ProgramCall() | Collective() | Move(name="load"):
                    self.kept.setdefault(item.worker, deque(maxlen=self.keep)).append(item)

    def spans(self) -> list[Span]:
        first = min((work.start for kept in self.kept.values() for work in kept), default=0.0)
        spans = [
            Span(self.indices[worker], w.name, w.signal, w.start - first, w.stop - first, isinstance(w, Collective))
            for worker, kept in self.kept.items() for w in kept
        ]  # fmt: skip
        return sorted(spans, key=lambda s: (s.start, s.worker))


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals as disjoint intervals."""
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((start, stop))
    return found


def common(a: list[Interval], b: list[Interval]) -> float:
    """The length of the intersection of two lists of disjoint intervals."""
    return sum(max(0.0, min(s, u) - max(r, t)) for r, s in a for t, u in b)


def picture(timeline: Timeline, title: str = "") -> str:
    """The SVG text."""
    end = max((s.stop for s in timeline.spans), default=0.0) or 1.0
    wide = WIDE - LEFT - 24
    top = 58 if title else 34
    workers = timeline.workers
    high = top + LANE * len(workers) + 44
    colours = _colours(timeline.spans)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {high}" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="#333"><rect width="{WIDE}" height="{high}" rx="8" fill="#fff"/>'
    ]
    if title:
        out.append(f'<text x="{LEFT}" y="26" font-size="15" font-weight="600">{escape(title)}</text>')
    out += _legend(colours, top - 14)
    for row, worker in enumerate(workers):
        y = top + LANE * row
        out.append(f'<text x="{LEFT - 12}" y="{y + LANE // 2 + 4}" text-anchor="end">worker {worker}</text>')
        out.append(f'<rect x="{LEFT}" y="{y + 7}" width="{wide}" height="{BAR}" fill="#f1f3f5"/>')
        out += [_bar(bar, y + 7, wide / end) for bar in _bars(timeline.spans, worker, end / wide, colours)]
    out += _axis(end, wide, top, LANE * len(workers))
    return "\n".join(out) + "\n</svg>\n"


def _label(span: Span) -> str:
    return span.name if span.collective else span.signal or "no signal"


def _colours(spans: list[Span]) -> dict[str, str]:
    """A colour for each label, in the order of appearance. A signal whose name begins with another's (`stage 1 backward`) has a
    lighter shade of its colour."""
    found: dict[str, str] = {}
    for collective, colours in ((False, WORK), (True, COLLECTIVE)):
        labels = list(dict.fromkeys(_label(s) for s in spans if s.collective is collective))
        bases = {a: b for a in labels for b in labels if a != b and a.startswith(b)}
        own = dict(zip((x for x in labels if x not in bases), colours * len(labels)))
        found |= {x: own[x] if x in own else _lighter(own.get(bases[x], colours[0])) for x in labels}
    return found


def _lighter(colour: str) -> str:
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{p + (255 - p) * 9 // 20:02x}" for p in parts)


Bar = tuple[float, float, str, list[str], bool]  # start, stop, colour, labels, whether it is a collective


def _bars(spans: list[Span], worker: int, pixel: float, colours: dict[str, str]) -> list[Bar]:
    """The bars of a worker; adjacent spans of one colour are joined, as a step has thousands."""
    found: list[Bar] = []
    for s in spans:
        if s.worker != worker:
            continue
        colour = colours[_label(s)]
        if found and found[-1][2] == colour and s.start - found[-1][1] < pixel:
            found[-1] = (found[-1][0], max(found[-1][1], s.stop), colour, [*found[-1][3], s.name], s.collective)
        else:
            found.append((s.start, s.stop, colour, [s.name], s.collective))
    return found


def _bar(bar: Bar, y: float, scale: float) -> str:
    """Collectives are drawn thinner than other spans: most of their time is waiting."""
    start, stop, colour, names, collective = bar
    x, width = LEFT + start * scale, max(0.6, (stop - start) * scale)
    text = escape(f"{' '.join(dict.fromkeys(names))}: {(stop - start) * 1e3:.2f} ms")
    y, high = (y + BAR // 3, BAR // 3) if collective else (y, BAR)
    edge = ' stroke="#fff" stroke-width="0.8"' if width > 3 and not collective else ""
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{high}" fill="{colour}"{edge}><title>{text}</title></rect>'


def _legend(colours: dict[str, str], y: int) -> list[str]:
    out, x = [], LEFT
    for label, colour in colours.items():
        out.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" rx="2" fill="{colour}"/>')
        out.append(f'<text x="{x + 17}" y="{y}">{escape(label)}</text>')
        x += 36 + 7 * len(label)
    return out


def _axis(end: float, wide: float, top: int, high: int) -> list[str]:
    """Ticks in milliseconds, at round numbers."""
    step = 10.0**-6
    while end / step > 10:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    bottom, out = top + high + 6, []
    for i in range(int(end / step) + 1):
        x = LEFT + i * step / end * wide
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="#0002"/>')
        out.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#777">{i * step * 1e3:g}</text>')
    out.append(f'<text x="{LEFT + wide + 20}" y="{bottom + 30}" text-anchor="end" fill="#777">milliseconds</text>')
    return out
