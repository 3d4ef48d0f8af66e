"""`gt top`: a cluster in a terminal. A bar for each worker shows the shares of its last seconds by group of ops."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Static

from gt.errors import GTError
from gt.transport.events import SAMPLED, Watched
from gt.watch.chart import colour
from gt.watch.listen import Listener, local_servers
from gt.watch.model import Model, WorkerView
from gt.watch.stats import amount

SORTS: dict[str, Callable[[WorkerView], Any]] = {
    "index": lambda w: w.index,
    "busy": lambda w: w.idle,
    "queue": lambda w: -(w.state.queue if w.state else 0),
    "memory": lambda w: -(w.state.nbytes if w.state else 0),
}
NAME, FIGURES = 14, 35  # columns of a worker's name, and of the figures after its bar
LEAST = 10  # least columns of a bar


def bar(shares: dict[str, float], width: int) -> Text:
    """Shares as coloured blocks, `width` columns in all; the last block is idle time."""
    work = sorted(((g, s) for g, s in shares.items() if g != "idle"), key=lambda pair: -pair[1])
    text, filled, total = Text(), 0, 0.0
    for group, share in work:
        total += share
        wide = round(min(total, 1.0) * width) - filled
        text.append("█" * wide, style=colour(group))
        filled += wide
    text.append("░" * (width - filled), style="#8a8f98")
    return text


def worker_line(view: WorkerView, width: int, chosen: bool) -> Text:
    """`> worker-0  ██████░░░  62% q   12  1.2 GB  gpu 97%`"""
    state = view.state
    name = view.name if len(view.name) <= NAME else view.name[: NAME - 1] + "…"
    text = Text("> " if chosen else "  ", style="bold")
    text.append(f"{name:<{NAME}} ")
    text.append(bar(view.shares, max(LEAST, width - NAME - 3 - FIGURES)))
    text.append(f" {1 - view.idle:>4.0%}")
    queue, used = (state.queue, amount(state.nbytes)) if state else (0, "")
    gpu = f"gpu {state.gpu:>4.0%}" if state and state.gpu >= 0 else ""
    text.append(f" q {queue:>6} {used:>9} {gpu:>8}")
    return text


def legend(views: list[WorkerView], width: int) -> Text:
    """Each group with its colour and its share of all workers' time, if it has one that can be shown, in lines of `width`."""
    total: dict[str, float] = {}
    for view in views:
        for group, share in view.shares.items():
            total[group] = total.get(group, 0.0) + share / len(views)
    lines = [Text("  ")]
    for group, share in sorted(total.items(), key=lambda pair: (pair[0] == "idle", -pair[1])):
        if (figure := f"{share:.0%}") == "0%" and group != "idle":
            continue
        if len(lines[-1]) + len(f"■ {group} {figure}") > width:
            lines.append(Text("  "))
        lines[-1].append("■ ", style="#8a8f98" if group == "idle" else colour(group)).append(f"{group} {figure}  ")
    return Text("\n").join(lines)


def client_lines(model: Model) -> Iterator[Text]:
    yield Text(
        f"  {'client':<22} {'share':>6} {'instr.':>10} {'waited':>9} {'traces':>7} {'hits':>8} {'rate':>5}", style="bold"
    )
    for view in sorted(model.connected_clients(), key=lambda c: -c.share):
        rate = f"{view.hit_rate:.0%}" if view.hits else ""
        label = view.label if len(view.label) <= 22 else view.label[:21] + "…"
        traces = f"{view.found:>7} {view.hits:>8} {rate:>5}"
        yield Text(f"  {label:<22} {view.share:>6.0%} {view.instructions:>10} {view.waited:>8.1f}s {traces}")


def details(view: WorkerView) -> Text:
    """The instruction that a worker runs, and its stack if it has run for long."""
    state = view.state
    text = Text(f"  {view.name}: {view.about}\n")
    if state is not None:
        at = f"{state.current} for {state.since:.1f} s" if state.current else "nothing"
        text.append(f"  executes {at}; {state.tensor_count} tensors, {amount(state.nbytes)} of {amount(state.total)}\n")
        if state.stack:
            text.append(state.stack, style="dim")
    return text


class Top(App[None]):
    """The Textual application. A thread listens to the chosen server, unless a `model` that somebody else updates is given."""

    CSS = "Screen { layout: vertical; } #details { height: auto; } Static { height: auto; }"
    BINDINGS = [
        Binding("q", "quit", "quit"),
        Binding("s", "sort", "sort"),
        Binding("p,space", "pause", "pause"),
        Binding("f", "filter", "client"),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("enter", "details", "details"),
        Binding("d", "next_server", "server"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, servers: list[str], key: str = "", model: Model | None = None, clock: Callable[[], float] = time.time):
        super().__init__()
        self.servers, self.key_, self.clock = servers, key, clock
        self.at = 0  # index of the chosen server
        self.model = model or Model()
        self.live = model is None
        self.sort_by, self.client, self.chosen = "index", "", 0
        self.paused_, self.shown = False, False
        self.failure = ""
        self.parts: dict[str, Static] = {}
        self.lock, self.stop = threading.Lock(), threading.Event()

    def compose(self) -> ComposeResult:
        self.parts = {name: Static(id=name) for name in ("head", "workers", "legend", "clients", "details")}
        yield from self.parts.values()
        yield Footer()

    def on_mount(self) -> None:
        self.set_interval(0.5, self.redraw)
        if self.live:
            self._follow()
        self.redraw()

    def _follow(self) -> None:
        self.stop.set()
        self.stop = threading.Event()
        self.model, self.failure = Model(), ""
        args = (self.servers[self.at], self.model, self.stop)
        threading.Thread(target=self._listen, args=args, name="gt-top", daemon=True).start()

    def _listen(self, address: str, model: Model, stop: threading.Event) -> None:
        try:
            with Listener(address, SAMPLED, self.key_) as listener:
                while not stop.is_set():
                    for watched in listener.take(0.2):
                        self.take(model, watched)
                        if stop.is_set():
                            break
        except GTError as failed:
            if not stop.is_set():
                self.failure = str(failed)

    def take(self, model: Model, watched: Watched) -> None:
        with self.lock:
            model.add(watched)

    def on_unmount(self) -> None:
        self.stop.set()

    def views(self) -> list[WorkerView]:
        return sorted(self.model.connected_workers(), key=lambda w: (SORTS[self.sort_by](w), w.index))

    def redraw(self) -> None:
        if self.paused_:
            return
        with self.lock:
            self.model.refresh(self.clock(), self.client)
            self._draw()

    def _draw(self) -> None:
        views, width = self.views(), self.size.width
        self.chosen = max(0, min(self.chosen, len(views) - 1))
        heading = f"gt top  {self.servers[self.at] if self.servers else ''}"
        heading += f"  {len(views)} workers, {len(self.model.connected_clients())} clients"
        heading += f"  by {self.sort_by}" + (f"  client {self.client}" if self.client else "")
        heading += "  PAUSED" if self.paused_ else ""
        heading += f"  {self.model.dropped} dropped" if self.model.dropped else ""
        self._show("head", Text(self.failure or heading, style="bold red" if self.failure else "bold", overflow="ellipsis"))
        lines = [worker_line(w, width, self.shown and i == self.chosen) for i, w in enumerate(views)]
        self._show("workers", Text("\n").join(lines) if lines else Text("  no workers yet"))
        self._show("legend", legend(views, width) if views else Text(""))
        self._show("clients", Text("\n").join(client_lines(self.model)))
        self._show("details", details(views[self.chosen]) if self.shown and views else Text(""))

    def _show(self, name: str, text: Text) -> None:
        part = self.parts.get(name)
        if (
            part is not None and part.is_attached
        ):  # timers and keys may fire before the screen is mounted and after it is closed
            part.update(text)

    # Keys

    def action_sort(self) -> None:
        names = list(SORTS)
        self.sort_by = names[(names.index(self.sort_by) + 1) % len(names)]
        self._draw()

    def action_pause(self) -> None:
        self.paused_ = not self.paused_
        self._draw()

    def action_filter(self) -> None:
        """Show the next client alone; after the last, all of them."""
        labels = ["", *(c.label for c in self.model.connected_clients())]
        self.client = labels[(labels.index(self.client) + 1) % len(labels)] if self.client in labels else ""
        for view in self.model.workers.values():
            view.shares = {}
        self.redraw()

    def action_move(self, by: int) -> None:
        self.shown, self.chosen = True, self.chosen + by if self.shown else self.chosen
        self._draw()

    def action_details(self) -> None:
        self.shown = not self.shown
        self._draw()

    def action_next_server(self) -> None:
        self.servers = [*dict.fromkeys([self.servers[self.at], *local_servers()])] if self.servers else local_servers()
        self.at = (self.at + 1) % len(self.servers) if self.servers else 0
        if self.live and self.servers:
            self._follow()
