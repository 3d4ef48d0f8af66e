"""The pictures that are no drawings: a terminal with the demo, `gt top` during a training run, a timeline and the dashboard.

    python tools/recordings.py [demo] [top] [timeline] [dashboard]

Each is made by its own program: the demo's own output, Textual's export of `gt top`, `gt visualize` of a capture, Chromium. A
recording is an SVG of frames that are shown in turn by CSS, without script; who asks for less motion sees the last frame."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import browser_check
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
HOLD = 4.0  # seconds for which the last frame stands
Frame = tuple[float, str]  # when it is first shown, in seconds, and an SVG
FONT = re.compile(r"@font-face \{.*?\}\s*", re.S)  # of another host: a page must read offline
TRAIN = """
import gt
gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
model = gt.nn.Sequential(gt.nn.Linear(256, 512), gt.nn.ReLU(), gt.nn.Linear(512, 64))
optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
with gt.signal("batch"):
    x = gt.randn(1024, 256)
while True:
    for _ in range(20):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss.item()
"""


def animated(frames: list[Frame]) -> str:
    """One SVG that shows each frame from its time to the next one's, and begins again HOLD seconds after the last."""
    start, end = frames[0][0], frames[-1][0] + HOLD
    total = end - start
    sizes = [tuple(map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())) for _, svg in frames]  # type: ignore[union-attr]
    wide, high = max(w for w, _ in sizes), max(h for _, h in sizes)
    rules, shown = [], []
    for n, (at, svg) in enumerate(frames):
        since, until = (at - start) / total * 100, (frames[n + 1][0] - start) / total * 100 if n + 1 < len(frames) else 100.0
        rules.append(f"@keyframes f{n} {{ 0%, {since:.2f}% {{ opacity: 0 }} {since + 0.01:.2f}%, {until:.2f}% {{ opacity: 1 }} "
                     f"{min(until + 0.01, 100):.2f}%, 100% {{ opacity: {int(n + 1 == len(frames))} }} }}")  # fmt: skip
        still = int(n + 1 == len(frames))
        rules.append(f"#f{n} {{ opacity: {still}; animation: f{n} {total:.2f}s step-end infinite }}")
        shown.append(f'<g id="f{n}">{FONT.sub("", svg)}</g>')
    rules.append("@media (prefers-reduced-motion) { g[id^=f] { animation: none !important } }")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}">'
    return "\n".join([head, "<style>", *rules, "</style>", *shown, "</svg>", ""])


def screen(lines: list[str], columns: int, rows: int, title: str, number: int) -> str:
    """Lines with their ANSI colours as a terminal of rich's."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines[-rows:] + [""] * (rows - len(lines)):
        console.print(Text.from_ansi(line), overflow="crop", no_wrap=True)
    return console.export_svg(title=title, unique_id=f"t{number}")


def demo() -> str:
    """`make demo`: a frame for each line that is more than a tenth of a second after the one before."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": "96",
           "PYTHONUNBUFFERED": "1"}  # fmt: skip
    command = [sys.executable, "examples/demo.py"]
    lines, moments, start = ["$ make demo"], [(0.0, 1)], time.perf_counter()
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            now = time.perf_counter() - start
            if now - moments[-1][0] < 0.1:
                moments[-1] = (moments[-1][0], len(lines))
            else:
                moments.append((now, len(lines)))
    if process.returncode:
        raise SystemExit(f"examples/demo.py ended with status {process.returncode}")
    rows = next((n for n, line in enumerate(lines) if "Replay" in line), len(lines))  # the counts of replay fill a second page
    return animated([(at, screen(lines[: min(n, rows)], 96, rows, "a tour of GT", k)) for k, (at, n) in enumerate(moments)])


@contextmanager
def cluster(clients: int, *options: str, **more: str) -> Iterator[str]:
    """The port of a server with two workers, which so many clients keep busy."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}
    port = free_port()
    script = f"import gt; gt.connect('localhost:{port}')\n" + TRAIN
    commands = [["-m", "gt.server", "-p", port, "--workers", "2", "--backend", "pytorch", *options]]
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            for command in [*commands, *[["-c", script]] * clients]:
                started.append(subprocess.Popen([sys.executable, *command], env=env, cwd=folder))
            await_workers(f"localhost:{port}", env)
            yield port
        finally:
            for process in reversed(started):  # the server last: it ends its workers
                process.terminate()
                process.wait()


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def top(frames: int = 8) -> str:
    """`gt top` over two workers that two clients keep busy, two frames a second."""
    sys.path.insert(0, str(ROOT))
    from gt.watch.top import Top

    with cluster(2) as port:
        return animated(asyncio.run(screens(Top([f"localhost:{port}"]), frames)))


def dashboard() -> bytes:
    """The dashboard of two workers that a client has kept busy for some seconds, in headless Chromium."""
    page, key = free_port(), secrets.token_hex(8)
    with cluster(1, "--dashboard", page, GT_DASHBOARD_KEY=key), tempfile.TemporaryDirectory() as folder:
        time.sleep(15)
        picture = Path(folder, "dashboard.png")
        command = [str(browser_check.chromium()), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   f"--user-data-dir={folder}/profile", "--window-size=1240,760", "--timeout=5000",
                   f"--screenshot={picture}", f"http://127.0.0.1:{page}/?key={key}"]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120)
        return picture.read_bytes()


def await_workers(server: str, env: dict[str, str]) -> None:
    """Until `gt stats` lists two workers."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        done = subprocess.run([sys.executable, "-m", "gt", "stats", server, "--json"], env=env, capture_output=True, text=True)
        if done.returncode == 0 and len(json.loads(done.stdout)["workers"]) == 2:
            return
        time.sleep(0.5)
    raise SystemExit(f"no two workers joined {server} within 120 s")


async def screens(app, frames: int) -> list[Frame]:  # noqa: ANN001
    """Textual's export of the running app, once both workers have been busy for some seconds."""
    made: list[Frame] = []
    async with app.run_test(size=(88, 16)) as pilot:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and sum(w.idle < 0.9 for w in app.views()) < 2:
            await pilot.pause(0.5)
        for n in range(8 + frames):
            await pilot.pause(0.5)
            if n >= 8:
                svg = app.export_screenshot(title="gt top")
                made.append((n * 0.5, re.sub(r"terminal-\d+", f"top{n}", svg)))
    return made


def timeline() -> bytes:
    """Four training steps on two workers, captured and drawn by `gt visualize`."""
    sys.path[:0] = [str(ROOT), str(ROOT / "examples")]
    import visualize_demo

    import gt
    from gt.watch.capture import CaptureFile

    with tempfile.TemporaryDirectory() as folder:
        capture, picture = Path(folder, "run.capture"), Path(folder, "timeline.png")
        gt.gpu_workers(2)
        visualize_demo.train(2, 2048, 1024)
        with CaptureFile(capture) as file, gt.debug.watch(file.write):
            visualize_demo.train(4, 2048, 1024)
        gt.disconnect()
        command = [sys.executable, "-m", "gt", "visualize", str(capture), "--output", str(picture), "--width", "12"]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        return picture.read_bytes()


MADE: dict[str, tuple[str, Callable[[], str | bytes]]] = {
    "demo": ("demo.svg", demo),
    "top": ("top.svg", top),
    "timeline": ("timeline.png", timeline),
    "dashboard": ("dashboard.png", dashboard),
}


def main(names: list[str]) -> None:
    for name in names or MADE:
        file, make = MADE[name]
        found = make()
        (PICTURES / file).write_bytes(found.encode() if isinstance(found, str) else found)
        print(f"{PICTURES / file}: {len(found):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
