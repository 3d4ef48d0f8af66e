"""The dashboard of a real cluster, in a real browser: it shows the work that runs."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from processes import Processes, free_port, until

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
from uvicorn.server import ServerState  # noqa: E402

from gt.watch import http_connections  # noqa: E402
from gt.watch.dashboard import DashboardState, application  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEY = "a-long-enough-key-of-a-page"
LOAD = """
import sys, gt
gt.connect(sys.argv[1], timeout=60)
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("rows"):
    x = gt.ones(64, 256)
w = gt.randn(256, 256) / 16
print("up", flush=True)
while True:
    y = w
    for _ in range(20):
        y = y @ w
    (x @ y).sum().item()
"""


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def update(port: int) -> dict:
    """The first server-sent event."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/events?key={KEY}", timeout=30) as stream:
        return json.loads(stream.readline().decode().removeprefix("data: "))


def answers(url: str) -> bool:
    try:
        fetch(url)
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_the_page_and_the_metrics_show_the_running_work(processes: Processes, tmp_path: Path) -> None:
    port, page = free_port(), free_port()
    options = ("--workers", "2", "--backend", "numpy", "--dashboard", str(page))
    processes.start("-m", "gt.server", "-p", str(port), *options, GT_DASHBOARD_KEY=KEY)
    at = f"http://127.0.0.1:{page}"
    until(lambda: answers(f"{at}/metrics?key={KEY}"), 60, "the dashboard")
    script = processes.script(LOAD, f"localhost:{port}")
    script.wait_for("up")
    until(lambda: any(w["shares"].get("matmul") for w in update(page)["workers"]), what="a share of products")
    until(lambda: "read" in fetch(f"{at}/search?text=read&key={KEY}"), what="the reads among the events")
    shown = update(page)
    assert [w["index"] for w in shown["workers"]] == [0, 1] and len(shown["clients"]) == 1
    assert any(p["name"] == "rows" and p["placement"] == "Shard(0) on [0, 1]" for p in shown["placed"]), shown["placed"]
    lanes = shown["timeline"]["lanes"]
    assert sum(lane.startswith("worker ") for lane in lanes) == 2 and "dispatcher" in lanes
    assert any(bar[3] == "matmul" or "trace" in bar[3] for bar in shown["timeline"]["bars"])
    numbers = fetch(f"{at}/metrics?key={KEY}")
    assert "gt_workers 2" in numbers and re.search(
        r'gt_worker_group_seconds_total\{worker="[^"]+",group="matmul"\} \d', numbers
    )
    if CHROMIUM is None:
        pytest.skip("the page itself was not looked at: there is no Chromium here")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={tmp_path}",
    ]
    command += ["--dump-dom", f"{at}/?key={KEY}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    assert 'data-group="matmul"' in found and "2 workers, 1 clients" in found and "Shard(0) on [0, 1]" in found, found[-2000:]
    assert '<th class="n">busy</th>' in found and '<th class="">client</th>' in found, "headings stand above their numbers"


POOL = """
worker_key: the key of this pool's workers
users:
  alice: {key: the secret of alice}
"""


def test_the_page_of_a_pool_wants_the_key_that_its_server_told(processes: Processes, tmp_path: Path) -> None:
    path, page = tmp_path / "pool.yaml", free_port()
    path.write_text(POOL)
    path.chmod(0o600)
    server, _ = processes.server("--config", str(path), "--dashboard", str(page))
    until(lambda: "/?key=" in server.err, what="the address of the dashboard")
    told = re.search(rf"http://127.0.0.1:{page}/\?key=(\S+)", server.err)
    assert told is not None
    at, shown = f"http://127.0.0.1:{page}", f"?key={told[1]}"
    until(lambda: answers(f"{at}/metrics{shown}"), what="the dashboard")
    for wrong in ("", "?key=another", "?key=the%20secret%20of%20alice", "?key=the%20key%20of%20this%20pool%27s%20workers"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(f"{at}/metrics{wrong}")

    def failure() -> str:
        with urllib.request.urlopen(f"{at}/events{shown}", timeout=30) as stream:
            return json.loads(stream.readline().decode().removeprefix("data: "))["failure"]

    until(lambda: not failure(), what="a dashboard that the dispatcher has let in")


def test_a_connection_that_sends_no_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_TIMEOUT", 0.2)
    monkeypatch.setattr(http_connections, "MAX_CONNECTIONS", 4)
    asyncio.run(asyncio.wait_for(silent_connections(), 60))


async def silent_connections() -> None:
    """Ones that say nothing, half a request, or half a second one; and more of them than there may be."""
    config = uvicorn.Config(application(DashboardState("ipc://nowhere"), KEY), lifespan="off", timeout_keep_alive=600)
    config.load()
    state = ServerState()
    made = await asyncio.get_running_loop().create_server(
        lambda: http_connections.HttpConnection(config, state, {}), "127.0.0.1", 0
    )
    port = made.sockets[0].getsockname()[1]
    whole = f"GET /metrics?key={KEY} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    for said in (b"", whole[:20], whole + b"G"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        answer = await reader.read()  # to its end
        assert answer.startswith(b"HTTP/1.1 200") == (len(said) > len(whole))
        writer.close()
    monkeypatched, http_connections.REQUEST_TIMEOUT = http_connections.REQUEST_TIMEOUT, 60.0
    several = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
    assert [await several[i][0].read() for i in range(2)] == [b"", b""], "the first are cut off for the last"
    several[5][1].write(whole)
    assert (await several[5][0].readline()).startswith(b"HTTP/1.1 200")
    http_connections.REQUEST_TIMEOUT = monkeypatched
    for _, writer in several:
        writer.close()
    made.close()


def test_a_connection_that_was_answered_late_and_sends_no_other_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUEST_TIMEOUT", 0.5)
    asyncio.run(asyncio.wait_for(kept_alive(), 20))


async def kept_alive() -> None:
    """The time for the first request is over while that is answered; then it has the same time for the next."""
    state = ServerState()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        [connection] = state.connections
        await asyncio.sleep(connection.deadline() - connection.loop.time() + 0.1)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(slow, lifespan="off", timeout_keep_alive=600)
    config.load()
    made = await asyncio.get_running_loop().create_server(
        lambda: http_connections.HttpConnection(config, state, {}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*made.sockets[0].getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nG")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")  # to its end
    writer.close()
    made.close()
