"""The dashboard: a web page with a live timeline of one dispatcher, and metrics for Prometheus. It reads the event stream in a
process of its own, so that it cannot slow the dispatcher down."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import sys
import threading
import time
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gt import environment
from gt.errors import GTError
from gt.launch import follow_parent
from gt.transport.auth import NO_KEYS, Keys
from gt.transport.connection_limits import raise_descriptor_limit
from gt.transport.events import EVERY
from gt.watch import metrics
from gt.watch.chart import chart
from gt.watch.events import Activity
from gt.watch.http_connections import HttpConnection
from gt.watch.listen import Listener
from gt.watch.model import Model
from gt.watch.visualize import data

TIMELINE_SECONDS = 5.0  # seconds of the live timeline
MAX_BARS = 3000  # most bars of the live timeline
MAX_FOUND = 200  # most lines of a search result
UPDATE_INTERVAL = 0.5  # seconds between updates
MAX_STREAMS = 32  # most pages that receive updates at one time
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",  # the page's address contains the key
    "X-Content-Type-Options": "nosniff",
}


class DashboardState:
    """The state of the cluster, shared by the listening thread and the HTTP requests."""

    def __init__(self, address: str, keys: Keys = NO_KEYS) -> None:
        self.address, self.keys = address, keys
        self.streams = 0
        self.text, self.made, self.making = "", 0.0, threading.Lock()  # the last update as text, and when it was made
        self.model, self.lock = Model(), threading.Lock()
        self.failure = ""
        self.closed = threading.Event()

    def listen(self) -> None:
        while not self.closed.is_set():
            try:
                with Listener(self.address, EVERY, keys=self.keys) as listener:
                    self.failure = ""
                    while not self.closed.is_set():
                        for watched in listener.take(0.2):
                            with self.lock:
                                self.model.add(watched)
            except GTError as failed:
                self.failure = str(failed)
                self.closed.wait(1.0)

    def update_text(self) -> str:
        """The current update as JSON. All pages share one text, so that another open page costs little."""
        with self.making:
            if not self.made or time.monotonic() - self.made > UPDATE_INTERVAL / 2:
                self.text, self.made = json.dumps(self.update(), separators=(",", ":")), time.monotonic()
            return self.text

    def update(self) -> dict[str, Any]:
        """The current contents of the page."""
        now = time.time()
        with self.lock:
            model = self.model
            model.refresh(now)
            recent = model.recording(now - TIMELINE_SECONDS)
            recent.items = recent.items[-MAX_BARS:]
            workers = [
                {
                    "name": w.name, "index": w.index, "about": w.about, "shares": w.shares, "instructions": w.instructions,
                    "queue": w.state.queue if w.state else 0, "bytes": w.state.nbytes if w.state else 0,
                    "total": w.state.total if w.state else 0, "tensors": w.state.tensor_count if w.state else 0,
                    "gpu": w.state.gpu if w.state else -1.0, "current": w.state.current if w.state else "",
                    "since": w.state.since if w.state else 0.0, "stack": w.state.stack if w.state else "",
                }
                for w in model.connected_workers()
            ]  # fmt: skip
            clients = [
                {
                    "label": c.label, "share": c.share, "instructions": c.instructions, "waited": c.waited, "found": c.found,
                    "hits": c.hits, "rate": c.hit_rate, "saved": c.saved, "uploaded": c.uploaded, "misses": c.misses,
                }
                for c in model.connected_clients()
            ]  # fmt: skip
            placed = [
                {"client": p.client, "name": p.name, "spec": p.spec, "placement": p.placement} for p in model.placed.values()
            ]
            compiled = [{"worker": c.worker, "seconds": c.seconds, "text": c.text} for c in model.compiled]
            drawn = data(chart(recent))
        return {
            "failure": self.failure, "workers": workers, "clients": clients, "placed": placed, "compiled": compiled[-20:],
            "stalls": [s.text for s in model.stalls], "dropped": model.dropped, "timeline": drawn,
        }  # fmt: skip

    def search(self, text: str) -> list[str]:
        """The last instructions whose op, client, worker or line contains `text`."""
        wanted, found = text.lower(), []
        with self.lock:
            for item in reversed(self.model.items):
                if not isinstance(item, Activity):
                    continue
                line = self.model.reader.line(item)
                shown = f"{item.start:.6f} {item.worker} {item.client} {item.name} {item.seconds * 1e6:.1f} us {line}".rstrip()
                if wanted in shown.lower():
                    found.append(shown)
                if len(found) >= MAX_FOUND:
                    break
        return found

    def metrics(self) -> str:
        with self.lock:
            return metrics.text(self.model)


def page(first: str) -> str:
    """The page: one HTML file that contains its script and the first update as JSON."""
    static = resources.files("gt.watch") / "static"
    text = (static / "dashboard.html").read_text().replace("%SCRIPT%", (static / "timeline.js").read_text())
    return text.replace("%DATA%", first.replace("<", "\\u003c"))


async def updates(board: DashboardState, request: Request) -> AsyncIterator[str]:
    """The updates for one open page. A page that reads slowly receives fewer."""
    board.streams += 1
    try:
        while not board.closed.is_set() and not await request.is_disconnected():
            yield f"data: {await asyncio.to_thread(board.update_text)}\n\n"
            await asyncio.sleep(UPDATE_INTERVAL)
    finally:
        board.streams -= 1


def application(board: DashboardState, key: str) -> Starlette:
    """The web application. Each request has to contain the key, as `?key=...` or as a bearer token, also on this host: TCP does
    not identify the connecting process, and a browser may send requests on behalf of another web page."""

    def allowed(request: Request) -> bool:
        shown = request.query_params.get("key", "") or request.headers.get("authorization", "").removeprefix("Bearer ")
        return bool(key) and hmac.compare_digest(shown.encode(), key.encode())

    def guarded(answer: Any) -> Any:
        async def endpoint(request: Request) -> Response:
            if not allowed(request):
                return PlainTextResponse(
                    "this dashboard requires a key: open the address that its server printed, with ?key=KEY\n", 401
                )
            made: Response = await answer(request)
            made.headers.update(HEADERS)
            return made

        return endpoint

    async def index(request: Request) -> Response:
        return HTMLResponse(page(await asyncio.to_thread(board.update_text)))

    async def events(request: Request) -> Response:
        if board.streams >= MAX_STREAMS:
            return PlainTextResponse(f"too many open pages: at most {MAX_STREAMS} receive updates at one time\n", 503)
        return StreamingResponse(updates(board, request), media_type="text/event-stream")

    async def numbers(request: Request) -> Response:
        return PlainTextResponse(board.metrics(), media_type="text/plain; version=0.0.4")

    async def search(request: Request) -> Response:
        lines = await asyncio.to_thread(board.search, request.query_params.get("text", "")[:200])
        return PlainTextResponse("\n".join(lines))

    routes = {"/": index, "/events": events, "/metrics": numbers, "/search": search}
    return Starlette(routes=[Route(path, guarded(answer)) for path, answer in routes.items()])


def serve(board: DashboardState, host: str, port: int, key: str) -> None:
    thread = threading.Thread(target=board.listen, name="gt-dashboard", daemon=True)
    thread.start()
    raise_descriptor_limit()
    options: dict[str, Any] = {"log_level": "error", "timeout_graceful_shutdown": 1, "http": HttpConnection, "ws": "none"}
    try:
        uvicorn.run(application(board, key), host=host, port=port, **options)
    finally:
        board.closed.set()


def main(argv: list[str] | None = None) -> int:
    """The process that `gt.server --dashboard` starts; it reads its keys from the environment."""
    p = argparse.ArgumentParser(prog="gt dashboard")
    p.add_argument("address", help="address of the dispatcher")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("-p", "--port", type=int, default=8265)
    args = p.parse_args(argv)
    follow_parent()
    key, keys = environment.DASHBOARD_KEY.value(), Keys(environment.KEY.value(), environment.WORKER_KEY.value())
    if not key:
        print("gt dashboard: no key: set GT_DASHBOARD_KEY to the key that requests have to contain", file=sys.stderr)
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        serve(DashboardState(args.address, keys), args.host, args.port, key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
