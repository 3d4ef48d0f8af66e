"""`gt trace` of a real cluster writes the executed instructions, in their order and with their times."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from processes import Processes

from gt.cli import main
from gt.transport.addresses import ipc_address
from gt.watch.listen import local_servers
from gt.watch.log_reader import read

PRODUCTS = 5
STEPS = f"""
import sys, time, gt
gt.connect(sys.argv[1])
w = gt.eye(32)
print("up", flush=True)
while True:
    y = w
    for _ in range({PRODUCTS}):
        y = y @ w
    y.sum().item()
    time.sleep(0.05)  # so that several reports come before the capture is full
"""
CLIENT, DISPATCHER, WORKER = 1, 2, 3  # tracks of Perfetto


def captured(processes: Processes, *options: str) -> tuple[Path, list[dict[str, Any]]]:
    """The capture and the trace events that a command writes."""
    before = set(processes.folder.glob("traces/*"))
    command = processes.start("-m", "gt.scripts.trace", "--dir", "traces", *options)
    assert command.ended() == 0, command.err
    [capture, shown] = sorted(set(processes.folder.glob("traces/*")) - before)
    assert f"events in traces/{capture.name}" in command.out and f"traces/{shown.name}: open it" in command.out
    return capture, json.loads(shown.read_text())["traceEvents"]


def test_steps_of_a_client_are_shown_whole_with_arrows_from_client_to_worker(processes: Processes, capsys: Any) -> None:
    _, port = processes.server()
    processes.worker(port)
    processes.script(STEPS, f"localhost:{port}", GT_TRACE="0").wait_for("up")
    assert ipc_address(str(port)) in local_servers(), "where no port is given, the latest of these"
    capture, events = captured(processes, "-s", "600", "-n", "600", "--port", str(port))
    work = sorted((e for e in events if e["ph"] == "X" and e["pid"] == WORKER), key=lambda e: e["ts"])
    steps: list[list[dict[str, Any]]] = [[]]
    for event in work:
        steps[-1].append(event)
        if event["name"] == "read":
            steps.append([])
    whole = steps[1:-1]  # the capture may begin or end within a step
    assert len(read(capture).items) >= 600, "it ended by the number of events"
    assert len(whole) > 5
    for step, following in zip(whole, whole[1:]):
        assert Counter(e["name"] for e in step) == {"matmul": PRODUCTS, "sum": 1, "read": 1}
        end = step[-1]["ts"] + step[-1]["dur"]
        assert following[0]["ts"] >= end, "its client reads one step before it asks for the next"
    told = max(e["ts"] for e in events if e["ph"] == "X" and e["pid"] == CLIENT)  # a client reports now and then
    check_arrows(events, {round(begin, 3) for step in whole if (begin := step[0]["ts"]) < told})
    assert main(["doctor", str(capture)]) == 0
    assert "on 1 workers, which were busy for" in (said := capsys.readouterr().out)
    assert f": {len(read(capture).work)} instructions" in said, said


def check_arrows(events: list[dict[str, Any]], begins: set[float]) -> None:
    """Each batch goes from the client to the dispatcher and from there to the first activity of its step."""
    ends: defaultdict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]][event["ph"]] = event
    paths: defaultdict[str, dict[tuple[int, int], dict[str, dict[str, Any]]]] = defaultdict(dict)
    for pair in ends.values():
        assert pair["s"]["ts"] <= pair["f"]["ts"], "not backwards in time"
        paths[pair["s"]["name"]][pair["s"]["pid"], pair["f"]["pid"]] = pair
    reached = {}
    for path in paths.values():
        if path.keys() == {(CLIENT, DISPATCHER), (DISPATCHER, WORKER)}:
            first, second = path[CLIENT, DISPATCHER], path[DISPATCHER, WORKER]
            assert first["f"]["ts"] <= second["s"]["ts"] <= second["f"]["ts"]
            reached[round(second["f"]["ts"], 3)] = path
    assert len(begins) > 5 and begins <= reached.keys(), "an arrow for each step, to its first instruction"
