"""The dashboard of a real cluster, in a real browser: what it shows is what runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from processes import Processes, free_port, until

pytest.importorskip("starlette")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOAD = """
import sys, gt
gt.connect(sys.argv[1], timeout=60)
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("rows"):
    x = gt.ones(64, 256)
w = gt.randn(256, 256)
print("up", flush=True)
while True:
    for _ in range(20):
        y = w @ w
    (x @ w).sum().item()
"""


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def update(port: int) -> dict:
    """The first server-sent event."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/events", timeout=30) as stream:
        return json.loads(stream.readline().decode().removeprefix("data: "))


def answers(url: str) -> bool:
    try:
        fetch(url)
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_the_page_shows_what_runs_and_metrics_say_the_same(processes: Processes, tmp_path: Path) -> None:
    port, page = free_port(), free_port()
    processes.start("-m", "gt.server", "-p", str(port), "--workers", "2", "--backend", "numpy", "--dashboard", str(page))
    at = f"http://127.0.0.1:{page}"
    until(lambda: answers(f"{at}/metrics"), 60, "the dashboard")
    script = processes.script(LOAD, f"localhost:{port}")
    script.says("up")
    until(lambda: any(w["shares"].get("matmul", 0) > 0.3 for w in update(page)["workers"]), 60, "a share of products")
    shown = update(page)
    assert [w["index"] for w in shown["workers"]] == [0, 1] and len(shown["clients"]) == 1
    groups = {g: sum(w["shares"].get(g, 0) for w in shown["workers"]) for w in shown["workers"] for g in w["shares"]}
    assert max(groups.keys() - {"idle", "collective"}, key=lambda g: groups[g]) == "matmul", groups
    assert any(p["name"] == "rows" and p["placement"] == "Shard(0) on [0, 1]" for p in shown["placed"]), shown["placed"]
    lanes = shown["timeline"]["lanes"]
    assert sum(lane.startswith("worker ") for lane in lanes) == 2 and "dispatcher" in lanes
    assert any(bar[3] == "matmul" or "trace" in bar[3] for bar in shown["timeline"]["bars"])
    numbers = fetch(f"{at}/metrics")
    assert "gt_workers 2" in numbers and re.search(
        r'gt_worker_group_seconds_total\{worker="[^"]+",group="matmul"\} \d', numbers
    )
    assert "read" in fetch(f"{at}/search?text=read")
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
    command += ["--dump-dom", at]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    assert 'data-group="matmul"' in found and "2 workers, 1 clients" in found and "Shard(0) on [0, 1]" in found, found[-2000:]


@pytest.mark.slow
def test_beyond_this_host_the_page_wants_the_key(processes: Processes) -> None:
    port, page = free_port(), free_port()
    key = "a long enough key for a test"
    options = ("--dashboard", str(page), "--dashboard-host", "0.0.0.0")
    processes.start("-m", "gt.server", "-p", str(port), *options, GT_KEY=key)
    at = f"http://127.0.0.1:{page}"
    until(lambda: answers(f"{at}/metrics?key={key.replace(' ', '%20')}"), 60, "the dashboard")
    for wrong in ("", "?key=another"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            fetch(f"{at}/metrics{wrong}")
